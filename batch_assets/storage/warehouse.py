"""What readers open: a small DuckDB catalog of views over immutable files, swapped in one rename.

The truth is the ledger's pointer; the catalog is derived and can be rebuilt at any time. It is
built beside the old one, closed, fsynced and renamed over it: readers keep the file that they have
open, new ones see the new version, and nobody waits for a lock. It carries a stamp of the pointers
that it was made from, so that one that is missing, old or damaged is told from one that is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from batch_assets.core.sql_text import parquet_rows, problem_of, quote_name, quote_text
from batch_assets.errors import StoreError
from batch_assets.failpoints import failpoint
from batch_assets.storage.file_sets import DataFile
from batch_assets.storage.objects import Objects
from batch_assets.storage.publications import Publication

FORMAT = 2  # of the catalog; one of another format is old
_SCRATCH = ".warehouse-"
_STAMP = "batch_assets.stamp"
_HISTORY = pa.schema(
    [
        ("job", pa.string()),
        ("sequence", pa.int64()),
        ("moved_at", pa.string()),
        ("kind", pa.string()),
        ("from_version", pa.string()),
        ("to_version", pa.string()),
        ("who", pa.string()),
        ("verdicts", pa.string()),
        ("override", pa.string()),
        ("overrode", pa.list_(pa.string())),
        ("publication_id", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class PublishedFiles:
    """What a job's pointer stands for."""

    job: str
    job_version: str
    publication_id: str
    files: Sequence[DataFile]


class Catalog:
    """A catalog that is built beside the one in use, and takes its place at the end.

    Use as a context manager, one at a time in a home: the caller holds the lock.
    """

    def __init__(self, target: Path, objects: Objects) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f"{_SCRATCH}*"):  # by publishers that were killed
            shutil.rmtree(left, ignore_errors=True)
        self._target = target
        self._objects = objects
        self._scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=_SCRATCH)
        self._built = Path(self._scratch.name) / "warehouse.duckdb"
        self._standing: dict[str, str] = {}  # job -> publication

    def __enter__(self) -> Catalog:
        # One thread: a catalog holds no rows, and starting more takes longer than making it.
        self._connection = duckdb.connect(str(self._built), config={"threads": 1})
        self._objects.attach(self._connection)
        self._connection.execute("CREATE SCHEMA published")
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._scratch.cleanup()

    def add(self, published: PublishedFiles) -> None:
        """Make a job's view. Raises StoreError when its files are missing or cannot be read."""
        wrong = [self._objects.uri(one.key) for one in published.files if self._objects.size(one.key) != one.bytes]
        if wrong:
            raise StoreError(
                f"{len(wrong)} files of {published.job_version} are missing or not as sealed, {wrong[0]} first. "
                "Nothing was changed; restore them from a backup."
            )
        with readable(f"The files of {published.job_version}"):
            files = parquet_rows(self._objects.uri(one.key) for one in published.files)
            self._connection.execute(f"CREATE VIEW published.{quote_name(published.job)} AS SELECT * FROM {files}")
        self._standing[published.job] = published.publication_id

    def put_in_place(self, history: Iterable[Publication]) -> None:
        """Write the history and swap: readers keep what they have open, new ones see this."""
        _create_history(self._connection, history, list(self._standing))
        self._connection.execute("CREATE SCHEMA batch_assets")
        made_from = [stamp(self._objects, self._standing)]
        self._connection.execute(f"CREATE TABLE {_STAMP} AS SELECT ? AS stamp", made_from).fetchall()
        self._connection.close()
        _fsync(self._built)
        failpoint("catalog.built")
        _make_way(self._target)
        self._built.replace(self._target)
        _fsync(self._target.parent)
        failpoint("catalog.replaced")


def stamp(objects: Objects, standing: Mapping[str, str]) -> str:
    """A digest of all that a catalog is made from: the publication of each job, and where the files are.

    A publication's id is made once, so the history up to it is the same one, too.
    """
    made_from = [FORMAT, objects.uri(""), sorted(standing.items())]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()


def read_stamp(target: Path) -> str | None:
    """The stamp of the catalog that is in place; None when there is none or it cannot be read to its end."""
    if not target.is_file():
        return None
    try:
        with open_warehouse(target) as connection:
            # DuckDB checks each block that it reads against its checksum.
            connection.execute("SELECT max(hash(h)) FROM published.history AS h").fetchall()
            row = connection.execute(f"SELECT stamp FROM {_STAMP}").fetchone()
    except (duckdb.Error, OSError):
        return None
    return None if row is None else str(row[0])


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Translate DuckDB's errors about files into one of ours."""
    try:
        yield
    except duckdb.Error as error:
        problem = problem_of(error)
        # A sentence of our own store says itself what to do.
        remedy = "" if problem.endswith(".") else ". Restore them from a backup."
        raise StoreError(f"{what} cannot be read: {problem}{remedy}") from error


def open_warehouse(target: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection; many readers may have one at the same time.

    The catalog is attached, not opened by its name: within one process DuckDB gives everybody who opens
    a name the file that the first of them still has open, however often it was replaced since.
    """
    connection = duckdb.connect()
    try:
        connection.execute(f"ATTACH {quote_text(str(target))} AS warehouse (READ_ONLY)")
        connection.execute("USE warehouse")
    except BaseException:
        connection.close()
        raise
    return connection


def _create_history(connection: duckdb.DuckDBPyConnection, history: Iterable[Publication], jobs: Iterable[str]) -> None:
    rows = [
        {
            **{name: getattr(move, name) for name in _HISTORY.names if hasattr(move, name)},
            "moved_at": move.at,
            "verdicts": json.dumps(dict(move.verdicts)),
            "overrode": list(move.overrode),
        }
        for move in history
    ]
    connection.register("rows", pa.Table.from_pylist(rows, schema=_HISTORY))
    connection.execute(
        "CREATE TABLE published.history AS SELECT * REPLACE (moved_at::TIMESTAMPTZ AS moved_at, verdicts::JSON AS verdicts) "
        "FROM rows"
    ).fetchall()
    connection.unregister("rows")
    for job in jobs:
        connection.execute(
            f"CREATE VIEW published.{quote_name(job + '__history')} AS "
            f"SELECT moved_at, kind, from_version, to_version, who, verdicts, override, overrode FROM published.history "
            f"WHERE job = {quote_text(job)} ORDER BY sequence DESC"
        )


def _make_way(target: Path) -> None:
    """What a rename cannot replace, or what would be taken for a part of the new catalog, goes aside."""
    if target.is_dir() and not target.is_symlink():
        target.rename(target.with_name(f"{target.name}.set-aside-{uuid.uuid4().hex[:8]}"))
    # Left by somebody who opened the catalog for writing; DuckDB would replay it over the new one.
    with contextlib.suppress(FileNotFoundError):
        target.with_name(f"{target.name}.wal").unlink()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
