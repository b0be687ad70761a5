"""The ids of records that are to go, from whatever file lists them: checked, sorted, kept as Parquet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.quoting import quoted
from batch_assets.core.version import FilePin
from batch_assets.errors import SnapshotError
from batch_assets.storage.conversion import read_rows
from batch_assets.storage.objects import Objects, missing, sha256_of
from batch_assets.storage.scan import MEMORY_LIMIT
from batch_assets.storage.snapshot_columns import open_parquet, plain_type

_BATCH = 10_000
_TEXT_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}

Numbered = Iterator[tuple[int, object]]


def pin_removed(path: Path, column: str, id_type: pa.DataType, objects: Objects) -> tuple[FilePin, str] | None:
    """(the ids as kept in the object store, a digest over them); None when the file lists none.

    `path` is Parquet, CSV or JSONL with the record id column, or text with one id a line. An id that is
    listed twice counts once. Raises SnapshotError naming file and line of what is no id.
    """
    total, rows = hashlib.sha256(), 0
    with duckdb.connect() as connection, objects.scratch() as scratch:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET enable_progress_bar = false")
        connection.register("ids", pa.table({"id": pa.array([], type=id_type)}))
        connection.execute("CREATE TABLE listed AS SELECT id FROM ids")
        for array in _arrays(path, column, id_type):
            connection.register("ids", pa.table({"id": array}))
            connection.execute("INSERT INTO listed SELECT id FROM ids")
        target, schema = scratch / "removed.parquet", pa.schema([pa.field(column, id_type)])
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            batches = connection.sql("SELECT DISTINCT id FROM listed ORDER BY id").to_arrow_reader(_BATCH)
            for batch in batches:
                ids = batch.column(0).cast(id_type)
                for one in ids.to_pylist():
                    total.update(json.dumps(one).encode() + b"\n")  # an id may hold line ends
                rows += len(ids)
                writer.write_table(pa.table([ids], schema=schema))
        if rows == 0:
            return None
        digest = total.hexdigest()
        key, sha256 = f"removed/{digest[:16]}-{sha256_of(target)[:8]}.parquet", sha256_of(target)
        objects.put_file_if_absent(key, target)
    stored = objects.stat(key)
    if stored is None:
        raise missing(key, objects.address)
    pin = FilePin(key=key, size=stored.size, sha256=sha256, rows=rows, modified_ns=stored.modified_ns)
    return pin, digest


def _arrays(path: Path, column: str, id_type: pa.DataType) -> Iterator[pa.Array]:
    if not path.is_file():
        raise SnapshotError(f"There is no file {path} with the ids to remove. Nothing was pinned.")
    if path.suffix.lower() in (".parquet", ".pq"):
        yield from _parquet(path, column, id_type)
        return
    kind = _TEXT_FORMATS.get(path.suffix.lower())
    numbered = _lines(path) if kind is None else _column(path, column, kind)
    while batch := list(islice(numbered, _BATCH)):
        yield pa.array([_as_id(path, line, value, id_type) for line, value in batch], type=id_type)


def _parquet(path: Path, column: str, id_type: pa.DataType) -> Iterator[pa.Array]:
    file = open_parquet(path)
    if column not in file.schema_arrow.names:
        raise SnapshotError(
            f"{path} has no column {column!r}, which names the records of this job. Its columns are "
            f"{', '.join(file.schema_arrow.names)}. Nothing was pinned."
        )
    found = plain_type(file.schema_arrow.field(column).type)
    if pa.types.is_integer(found) != pa.types.is_integer(id_type):
        raise SnapshotError(f"{path}: column {column!r} is {found}, but record ids are {id_type}. Nothing was pinned.")
    row = 0
    for batch in file.iter_batches(batch_size=_BATCH, columns=[column]):
        if batch.column(0).null_count:
            nulls = [index for index, value in enumerate(batch.column(0)) if not value.is_valid]
            raise SnapshotError(f"{path}, row {row + nulls[0]}: a null is no record id. Nothing was pinned.")
        try:
            yield batch.column(0).cast(found).cast(id_type)
        except pa.ArrowInvalid as error:
            raise SnapshotError(f"{path}: an id of {column!r} is no {id_type}: {error}. Nothing was pinned.") from None
        row += batch.num_rows


def _column(path: Path, column: str, kind: str) -> Numbered:
    for number, row in read_rows(path, kind):
        if row.get(column) is None:
            raise SnapshotError(f"{path}, line {number}: there is no {column!r} in it. Nothing was pinned.")
        yield number, row[column]


def _lines(path: Path) -> Numbered:
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                text = line.removesuffix("\n").removesuffix("\r")
                if text:
                    yield number, text
    except UnicodeDecodeError as error:
        raise SnapshotError(f"{path} is not UTF-8 text ({error.reason}). Nothing was pinned.") from None


def _as_id(path: Path, line: int, value: object, id_type: pa.DataType) -> object:
    """A value of the record ids' type. Text stays exactly as it is: " 17" is not "17"."""
    wrong = f"{path}, line {line}: {quoted(str(value))} is no {id_type}, the type of this job's record ids."
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SnapshotError(f"{wrong} Nothing was pinned.")
    if not pa.types.is_integer(id_type):
        if isinstance(value, int):
            raise SnapshotError(f"{wrong} Nothing was pinned.")
        return value
    try:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value) is None:  # int() also takes 1_0 and spaces
            raise ValueError(value)
        return pa.scalar(int(value), type=id_type).as_py()
    except (ValueError, pa.ArrowInvalid, OverflowError):
        raise SnapshotError(f"{wrong} Nothing was pinned.") from None
