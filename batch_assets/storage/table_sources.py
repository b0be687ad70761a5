"""Tables as snapshots: one version of a Delta or Iceberg table, copied once when it is pinned.

What a table shows changes under its name, and its files go away (overwrites, VACUUM, compaction).
The copy does not: it lies in the object store, under a key made of what identifies the version. Here
is what both kinds share; the libraries themselves are `delta_tables`' and `iceberg_tables`' business.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.spec import SnapshotSpec
from batch_assets.core.sql_text import parquet_rows, quote_name, quote_text
from batch_assets.core.version import canonical_json
from batch_assets.errors import SnapshotError
from batch_assets.storage.conversion import ROW_GROUP_ROWS

SORT_MEMORY = "1GB"
_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class TableVersion:
    """A version of a table, found and not read yet."""

    name: str  # address and version, for people and for the record
    parts: Any  # plain JSON: the table's id, the version, and the files that make it
    size: int  # bytes of those files
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    is_ordered: bool  # whether the batches come in the same order each time

    @property
    def digest(self) -> str:
        """The same for the same version of the same table, wherever and whenever it is pinned."""
        return hashlib.sha256(canonical_json(self.parts)).hexdigest()


def table_address(spec: SnapshotSpec, folder: Path) -> str:
    """An absolute path, or the URI as given."""
    if "://" in spec.path:
        return spec.path.rstrip("/")
    return str((folder / Path(spec.path).expanduser()).absolute())


def refuse_table(folder: Path) -> None:
    """Raise SnapshotError for a table's folder: its files are not its rows, some were removed from the table."""
    kind = "delta" if (folder / "_delta_log").is_dir() else None
    if any((folder / "metadata").glob("*.metadata.json")):
        kind = "iceberg"
    if kind is not None:
        raise SnapshotError(
            f"{folder} is a table: set snapshot.format in defs.yaml to {kind}, and the table's version if it should not be "
            "the latest; or to parquet, to take every file in it, removed rows included. Nothing was pinned."
        )


def copy_name(table: TableVersion, spec: SnapshotSpec) -> str:
    """Different for copies that may hold other rows, or the same ones in another order."""
    limit = "" if spec.rows is None else f"-{spec.rows}"
    sorted_by = "" if table.is_ordered else f"-{hashlib.sha256(spec.record_id.encode()).hexdigest()[:8]}"
    return f"{table.digest[:16]}{sorted_by}{limit}"


def copy_table(table: TableVersion, target: Path, *, record_id: str, rows_max: int | None) -> int:
    """Write the version's rows as one Parquet file; returns how many. Memory does not grow with the table.

    Rows of an engine that gives them in any order are sorted by record id, out of core.
    """
    with _explained(table):
        if table.is_ordered:
            return _write(table.batches(), table.schema, target, rows_max)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".sort-") as scratch:
            unsorted = Path(scratch) / "unsorted.parquet"
            _write(table.batches(), table.schema, unsorted, None)
            return _write(_sorted(unsorted, record_id, Path(scratch)), table.schema, target, rows_max)


def missing_library(package: str) -> SnapshotError:
    """What to do when a table's library is not installed."""
    return SnapshotError(
        f"Reading such a table needs {package}, which is not installed. Run: pip install 'batch-assets[tables]'"
    )


def what_is_there(address: str) -> str:
    """Some of what lies at a local address, for a message that says that it is no table."""
    if "://" in address:
        return "look at the address and at the AWS_* variables"
    path = Path(address)
    if not path.is_dir():
        return "there is a file" if path.exists() else "there is nothing"
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"the folder holds {', '.join(names[:_NAMES_SHOWN]) or 'nothing'}{more}"


def s3_setting(*names: str) -> str | None:
    """The first of these environment variables that is set."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def s3_endpoint() -> str | None:
    """The address of an S3 server that is not Amazon's."""
    return s3_setting("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def s3_region() -> str | None:
    """Other servers than Amazon's have no regions, but clients want one."""
    return s3_setting("AWS_REGION", "AWS_DEFAULT_REGION") or ("us-east-1" if s3_endpoint() else None)


def one_line(error: BaseException) -> str:
    """A library's message in one line."""
    return " ".join(str(error).split())[:500]


def _write(batches: Iterator[pa.RecordBatch], schema: pa.Schema, target: Path, rows_max: int | None) -> int:
    written = 0
    # Without Arrow's own schema in the file: what a library calls large_string is a string to everybody else.
    with pq.ParquetWriter(target, schema, compression="zstd", store_schema=False) as writer:
        for group in _groups(batches, schema):
            piece = group if rows_max is None else group.slice(0, rows_max - written)
            if piece.num_rows:
                writer.write_table(piece, row_group_size=ROW_GROUP_ROWS)
            written += piece.num_rows
            if written == rows_max:
                break
    return written


def _groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches in row groups of one size: a worker reads one shard without decoding its neighbours."""
    waiting: list[pa.Table] = []
    rows = 0
    for batch in batches:
        waiting.append(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            table, rest = pa.concat_tables(waiting), rows % ROW_GROUP_ROWS
            yield table.slice(0, rows - rest)
            waiting, rows = ([table.slice(rows - rest)] if rest else []), rest
    if waiting:
        yield pa.concat_tables(waiting)


def _sorted(file: Path, record_id: str, scratch: Path) -> Iterator[pa.RecordBatch]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{SORT_MEMORY}'")
        connection.execute(f"SET temp_directory = {quote_text(str(scratch))}")
        connection.execute("SET enable_progress_bar = false")
        rows = connection.sql(f"SELECT * FROM {parquet_rows([str(file)])} ORDER BY {quote_name(record_id)}")
        yield from rows.to_arrow_reader(ROW_GROUP_ROWS)


@contextmanager
def _explained(table: TableVersion) -> Iterator[None]:
    try:
        yield
    except SnapshotError:
        raise
    except (OSError, ValueError, pa.ArrowException, duckdb.Error) as error:
        raise SnapshotError(
            f"{table.name} cannot be read: {one_line(error)}. Perhaps its files were removed, by VACUUM or when "
            "snapshots expired: pin a version whose files are there. Nothing was pinned."
        ) from error
