"""What readers open: a small DuckDB catalog of views over sealed files, swapped in one rename.

The truth is the ledger's pointer; the catalog is derived and can be rebuilt at any time. It is
built beside the old one, closed, fsynced and renamed over it: readers keep the file that they have
open, new ones see the new version, and nobody waits for a lock.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from batch_assets.core.sql_text import parquet_rows, quote_name, quote_text
from batch_assets.errors import StoreError
from batch_assets.storage.objects import Objects
from batch_assets.storage.publications import Publication


@dataclass(frozen=True, kw_only=True)
class PublishedFiles:
    """What a job's pointer stands for."""

    job: str
    job_version: str
    files: Sequence[Mapping[str, Any]]  # key, sha256, bytes, rows


class Catalog:
    """A catalog that is built beside the one in use, and takes its place at the end. Use as a context manager."""

    def __init__(self, target: Path, objects: Objects) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._target = target
        self._objects = objects
        self._scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=".warehouse-")
        self._built = Path(self._scratch.name) / "warehouse.duckdb"
        self._jobs: list[str] = []

    def __enter__(self) -> Catalog:
        with duckdb.connect(str(self._built)) as connection:
            connection.execute("CREATE SCHEMA published")
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def add(self, published: PublishedFiles) -> None:
        """Make a job's view. Raises StoreError when its files are missing or cannot be read."""
        keys = [(str(file["key"]), file["bytes"]) for file in published.files]
        wrong = [self._objects.uri(key) for key, size in keys if self._objects.size(key) != size]
        if wrong:
            raise StoreError(
                f"{len(wrong)} files of {published.job_version} are missing or not as sealed, {wrong[0]} first. "
                "Nothing was changed; restore them from a backup."
            )
        with duckdb.connect(str(self._built)) as connection, readable(f"The files of {published.job_version}"):
            self._objects.attach(connection)
            _create_view(connection, self._objects, published)
        self._jobs.append(published.job)

    def put_in_place(self, history: Iterable[Publication]) -> None:
        """Write the history and swap: readers keep what they have open, new ones see this."""
        with duckdb.connect(str(self._built)) as connection:
            _create_history(connection, list(history), self._jobs)
        _fsync(self._built)
        self._built.replace(self._target)
        _fsync(self._target.parent)


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Translate DuckDB's errors about files into one of ours."""
    try:
        yield
    except duckdb.Error as error:
        problem = str(error).splitlines()[0]
        raise StoreError(f"{what} cannot be read: {problem}. Restore them from a backup.") from error


def write_pointer_object(objects: Objects, published: PublishedFiles) -> None:
    """The JSON pointer for readers that do not use DuckDB."""
    body = {"job": published.job, "job_version": published.job_version, "files": list(published.files)}
    objects.replace(f"published/{published.job}.json", json.dumps(body, indent=1).encode())


def open_warehouse(target: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection; many readers may have one at the same time."""
    return duckdb.connect(str(target), read_only=True)


def _create_view(connection: duckdb.DuckDBPyConnection, objects: Objects, published: PublishedFiles) -> None:
    files = parquet_rows(objects.uri(str(file["key"])) for file in published.files)
    connection.execute(f"CREATE VIEW published.{quote_name(published.job)} AS SELECT * FROM {files}")


def _create_history(connection: duckdb.DuckDBPyConnection, history: list[Publication], jobs: list[str]) -> None:
    connection.execute(
        "CREATE TABLE published.history (job TEXT, moved_at TIMESTAMPTZ, kind TEXT, from_version TEXT, to_version TEXT,"
        " who TEXT, verdicts JSON, publication_id TEXT)"
    )
    for move in history:
        connection.execute(
            "INSERT INTO published.history VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                move.job,
                move.at,
                move.kind,
                move.from_version,
                move.to_version,
                move.who,
                json.dumps(dict(move.verdicts)),
                move.publication_id,
            ],
        )
    for job in jobs:
        connection.execute(
            f"CREATE VIEW published.{quote_name(job + '__history')} AS "
            f"SELECT moved_at, kind, from_version, to_version, who, verdicts FROM published.history "
            f"WHERE job = {quote_text(job)} ORDER BY moved_at DESC"
        )


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
