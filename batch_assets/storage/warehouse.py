"""What readers open: a small DuckDB catalog of views over sealed files, swapped in one rename.

The truth is the ledger's pointer; the catalog is derived and can be rebuilt at any time. It is
built beside the old one, closed, fsynced and renamed over it: readers keep the file that they have
open, new ones see the new version, and nobody waits for a lock.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from batch_assets.core.sql_text import quote_name, quote_text
from batch_assets.storage.objects import Objects
from batch_assets.storage.publications import Publication


@dataclass(frozen=True, kw_only=True)
class PublishedFiles:
    """What a job's pointer stands for."""

    job: str
    job_version: str
    files: Sequence[Mapping[str, Any]]  # key, sha256, bytes, rows


def rebuild_catalog(
    target: Path, objects: Objects, published: Iterable[PublishedFiles], history: Iterable[Publication]
) -> None:
    """Build the catalog from the ledger's facts and put it in place of the old one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".warehouse-") as scratch:
        built = Path(scratch) / "warehouse.duckdb"
        with duckdb.connect(str(built)) as connection:
            connection.execute("CREATE SCHEMA published")
            jobs = [_create_view(connection, objects, one) for one in published]
            _create_history(connection, list(history), jobs)
        _fsync(built)
        built.replace(target)
        _fsync(target.parent)
    for one in published:
        write_pointer_object(objects, one)


def write_pointer_object(objects: Objects, published: PublishedFiles) -> None:
    """The JSON pointer for readers that do not use DuckDB."""
    body = {"job": published.job, "job_version": published.job_version, "files": list(published.files)}
    objects.replace(f"published/{published.job}.json", json.dumps(body, indent=1).encode())


def open_warehouse(target: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection; many readers may have one at the same time."""
    return duckdb.connect(str(target), read_only=True)


def _create_view(connection: duckdb.DuckDBPyConnection, objects: Objects, published: PublishedFiles) -> str:
    files = ", ".join(quote_text(str(objects.path(str(file["key"])))) for file in published.files)
    connection.execute(f"CREATE VIEW published.{quote_name(published.job)} AS SELECT * FROM read_parquet([{files}])")
    return published.job


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
