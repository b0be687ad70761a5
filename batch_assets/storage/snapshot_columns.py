"""The columns of a snapshot: they exist, have usable types, and are the same in all files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.spec import SnapshotSpec
from batch_assets.errors import SnapshotError

# Types that Parquet or DuckDB do not carry through; they would fail after every record was answered.
_UNREADABLE_LABELS = ("decimal256", "halffloat", "string_view", "binary_view", "list_view", "large_list_view")
RESERVED = frozenset({"__row", "__file", "file_row_number"})  # added when the snapshot is scanned


def open_parquet(source: Path | IO[bytes], where: object = None) -> pq.ParquetFile:
    """Open a file's metadata. Raises SnapshotError naming a file (`where`) that is not Parquet."""
    try:
        return pq.ParquetFile(source)
    except (pa.ArrowException, OSError) as error:
        raise SnapshotError(
            f"{where or source} is not a readable Parquet file ({error}). The snapshot was not pinned."
        ) from error


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values: dictionary encoding is a way of storing them."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def check_columns(columns: pa.Schema, spec: SnapshotSpec, *, where: Path | str) -> None:
    """The columns that the spec names exist, and the record id is text or an integer."""
    lowered = [name.lower() for name in columns.names]
    doubled = [name for name in columns.names if lowered.count(name.lower()) > 1]
    if doubled:
        raise SnapshotError(
            f"{where}: the columns {', '.join(map(repr, doubled))} have one name, or differ only in upper and lower case, "
            "which SQL does not tell apart; rename them."
        )
    record_class = [spec.record_class] if spec.record_class else []
    for name in [spec.record_id, *spec.text, *spec.access_labels, *record_class]:
        if name not in columns.names:
            raise SnapshotError(
                f"{where}: there is no column {name!r} (named under snapshot: in defs.yaml). "
                f"The columns are {', '.join(columns.names)}."
            )
    reserved = [name for name in columns.names if name.lower() in RESERVED]
    if reserved:
        raise SnapshotError(f"{where}: a column cannot be named {reserved[0]!r}; rename it.")
    id_type = plain_type(columns.field(spec.record_id).type)
    if not (pa.types.is_integer(id_type) or pa.types.is_string(id_type) or pa.types.is_large_string(id_type)):
        raise SnapshotError(
            f"{where}: the record id column {spec.record_id!r} is {id_type}; it must be a string or an integer."
        )
    for name in [*spec.access_labels, *record_class]:
        kind = str(plain_type(columns.field(name).type))
        if kind.startswith(_UNREADABLE_LABELS):
            raise SnapshotError(
                f"{where}: column {name!r} is {kind}, which the published table could not hold; convert it to text or to "
                "another type of number."
            )


def check_same_columns(files: Sequence[tuple[str, pa.Schema]]) -> None:
    """All files, given by name and columns, have the same columns and types."""
    (first_name, columns), *others = files
    first = _types(columns)
    for other_name, columns in others:
        other = _types(columns)
        for name in [*first, *other]:
            if first.get(name) != other.get(name):
                raise SnapshotError(
                    f"The snapshot's files differ in column {name!r}: {first.get(name) or 'absent'} in {first_name}, "
                    f"{other.get(name) or 'absent'} in {other_name}. Make them the same."
                )


def _types(columns: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: plain_type(field.type) for field in columns}
