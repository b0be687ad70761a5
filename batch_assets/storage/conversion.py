"""Turning CSV and JSONL snapshots into Parquet, once, when they are pinned.

Everything or nothing: a bad line names its file and number, and no file is left behind. Plain
columns keep their type; nested values and columns of mixed types become JSON text.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.errors import SnapshotError

ROW_GROUP_ROWS = 5000  # small row groups: a worker reads one shard without decoding its neighbours
_FIELD_BYTES_MAX = 64 * 1024 * 1024

Row = dict[str, Any]


def read_rows(path: Path, file_format: str) -> Iterator[tuple[int, Row]]:
    """(line number, row) of a CSV or JSONL file. Raises SnapshotError naming the file and line."""
    yield from (_read_jsonl(path) if file_format == "jsonl" else _read_csv(path))


def convert(path: Path, file_format: str, target: Path, *, rows_max: int | None) -> int:
    """Write `target` as Parquet with the rows of `path`; returns how many rows.

    Reads the file twice: once for the columns and their types, once to write, so that memory does
    not grow with the file.
    """
    schema = _infer_schema(path, file_format, rows_max)
    written = 0
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in _batches(path, file_format, rows_max):
            columns = {field.name: _column(path, batch, field) for field in schema}
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP_ROWS)
            written += len(batch)
    return written


def _read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(
                f"{path}, line {number}: not valid JSON ({error}). The snapshot was not pinned; repair that line."
            ) from error
        if not isinstance(row, dict):
            raise SnapshotError(
                f"{path}, line {number}: a JSON {type(row).__name__}, but each line must be an object "
                "of column names and values. The snapshot was not pinned."
            )
        yield number, row


def _read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(min(_FIELD_BYTES_MAX, sys.maxsize))
    reader = csv.reader((line for _, line in _lines(path)), strict=True)
    header: list[str] | None = None
    try:
        for values in reader:
            if header is None:
                header = _header(path, values)
            elif len(values) != len(header):
                raise SnapshotError(
                    f"{path}, line {reader.line_num}: {len(values)} fields where the header has {len(header)}. "
                    "The snapshot was not pinned; repair that line."
                )
            else:
                yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise SnapshotError(
            f"{path}, line {reader.line_num}: not valid CSV ({error}). The snapshot was not pinned; repair that line."
        ) from error


def _header(path: Path, names: list[str]) -> list[str]:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise SnapshotError(f"{path}, line 1: the header names column {doubled[0]!r} twice; rename one of them.")
    return names


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, line in enumerate(file, start=1):
                yield number, line
    except UnicodeDecodeError as error:
        raise SnapshotError(
            f"{path}, after line {number}: not UTF-8 ({error.reason}). The snapshot was not pinned; convert the file to UTF-8."
        ) from error


def _infer_schema(path: Path, file_format: str, rows_max: int | None) -> pa.Schema:
    kinds: dict[str, set[type]] = {}
    for index, (number, row) in enumerate(read_rows(path, file_format)):
        # Rows past the limit are still parsed: a file that is broken further down is broken.
        if rows_max is not None and index >= rows_max:
            continue
        for name, value in row.items():
            if name not in kinds:
                kinds[name] = set()
                _check_name(path, number, name)
            seen = kinds[name]
            if value is not None:
                seen.add(type(value))
    return pa.schema([pa.field(name, _arrow_type(seen)) for name, seen in kinds.items()])


def _check_name(path: Path, number: int, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SnapshotError(
            f"{path}, line {number}: a column's name is no text that can be stored ({error}). The snapshot was not "
            "pinned; repair that line."
        ) from None


def _arrow_type(kinds: set[type]) -> pa.DataType:
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.string()


def _batches(path: Path, file_format: str, rows_max: int | None) -> Iterator[list[tuple[int, Row]]]:
    batch: list[tuple[int, Row]] = []
    for index, numbered in enumerate(read_rows(path, file_format)):
        if rows_max is not None and index >= rows_max:
            break
        batch.append(numbered)
        if len(batch) == ROW_GROUP_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _column(path: Path, batch: list[tuple[int, Row]], field: pa.Field) -> pa.Array:
    values = [row.get(field.name) for _, row in batch]
    if field.type == pa.string():
        values = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        raise SnapshotError(_first_bad_value(path, batch, values, field)) from None


def _first_bad_value(path: Path, batch: list[tuple[int, Row]], values: list[Any], field: Any) -> str:
    """Which line holds the value that Arrow refused: a number beyond 64 bits, half of a surrogate pair."""
    for (number, _), value in zip(batch, values, strict=True):
        try:
            pa.array([value], type=field.type)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError) as error:
            return (
                f"{path}, line {number}: the value of {field.name!r} cannot be stored as {field.type} ({error}). "
                "The snapshot was not pinned; repair that line."
            )
    return f"{path}: the values of {field.name!r} near line {batch[0][0]} cannot be stored as {field.type}."
