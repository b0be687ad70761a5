"""Delta tables at a version, through deltalake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from batch_assets.errors import SnapshotError
from batch_assets.storage.conversion import ROW_GROUP_ROWS
from batch_assets.storage.table_sources import (
    TableVersion,
    missing_library,
    one_line,
    s3_endpoint,
    s3_region,
    what_is_there,
)


def find_delta(address: str, version: int | None) -> TableVersion:
    """A version of a Delta table, the latest when `version` is None; nothing but its log is read.

    Raises SnapshotError for what is no Delta table, for a version that it has not, and for features that
    deltalake cannot read.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError
    except ImportError as error:
        raise missing_library("deltalake") from error
    try:
        table = DeltaTable(address, version=version, storage_options=_options())
    except TableNotFoundError as error:
        raise _no_table(address, error) from error
    except (DeltaError, OSError, ValueError) as error:
        raise _no_version(address, version, error) from error
    try:
        return _found(address, table)
    except (DeltaError, DeltaProtocolError, pa.ArrowException) as error:
        raise SnapshotError(
            f"The Delta table {address} cannot be read by deltalake: {one_line(error)}. Write it as a table without "
            "that feature, or as Parquet, and pin that."
        ) from error


def _found(address: str, table: Any) -> TableVersion:
    metadata = table.metadata()
    actions = pa.table(table.get_add_actions(flatten=True))
    files = sorted(map(list, zip(*(actions.column(name).to_pylist() for name in ("path", "size_bytes")), strict=True)))
    dataset = _dataset(table)
    return TableVersion(
        name=f"{address}@{table.version()}",
        parts=["delta", str(metadata.id), table.version(), table.schema().to_json(), files, _deleted(table)],
        size=sum(size for _, size in files),
        schema=pa.schema(table.schema().to_arrow()),
        batches=(lambda: _by_engine(table)) if dataset is None else (lambda: _by_file(dataset)),
        is_ordered=dataset is not None,
    )


def _dataset(table: Any) -> Any | None:
    """The files as an Arrow data set; None for a table with features that only deltalake's own engine reads."""
    from deltalake.exceptions import DeltaProtocolError

    if table.protocol().min_reader_version == 2:  # before features had names, this meant column mapping
        return None
    # What Spark wrote long ago is in nanoseconds, which hold only the years 1677 to 2262.
    options = pyarrow.dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    try:
        return table.to_pyarrow_dataset(parquet_read_options=options)
    except DeltaProtocolError:
        return None


def _deleted(table: Any) -> list[list[str]]:
    """Each file with deleted rows, and a digest of which: two copies of a table may delete different ones."""
    found = []
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for file, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
            bits = kept.values.cast(pa.uint8()).to_numpy(zero_copy_only=False).tobytes()
            found.append([file.as_py().rsplit("/", 1)[-1], hashlib.sha256(bits).hexdigest()])
    return sorted(found)


def _by_file(dataset: Any) -> Iterator[pa.RecordBatch]:
    """The rows of one file after the other, in the order of their names."""
    for fragment in sorted(dataset.get_fragments(), key=lambda one: str(one.path)):
        yield from fragment.to_batches(
            schema=dataset.schema, batch_size=ROW_GROUP_ROWS, batch_readahead=1, fragment_readahead=0
        )


def _by_engine(table: Any) -> Iterator[pa.RecordBatch]:
    """The rows in any order."""
    from deltalake.exceptions import DeltaError

    try:
        yield from pa.RecordBatchReader.from_stream(table.scan())
    except DeltaError as error:
        raise ValueError(one_line(error)) from error


def _no_table(address: str, error: Exception) -> SnapshotError:
    return SnapshotError(
        f"{address} is no Delta table (no _delta_log that can be read; {what_is_there(address)}): {one_line(error)}. "
        "Set snapshot.path in defs.yaml to the table's folder. Nothing was pinned."
    )


def _no_version(address: str, version: int | None, error: Exception) -> SnapshotError:
    """Which versions there are, if that can be told."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        known = [int(one["version"]) for one in DeltaTable(address, storage_options=_options()).history()]
    except (DeltaError, OSError, ValueError):
        return _no_table(address, error)
    return SnapshotError(
        f"The Delta table {address} has no version {version} that can be read; its log has {min(known)} to {max(known)}. "
        "Set snapshot.version in defs.yaml to one of them, or leave it out for the latest. Nothing was pinned."
    )


def _options() -> dict[str, str]:
    """deltalake takes the AWS_* variables by itself, except where it asks for more."""
    endpoint = s3_endpoint()
    if endpoint is None:
        return {}
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": str(s3_region()),
        "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower(),
    }
