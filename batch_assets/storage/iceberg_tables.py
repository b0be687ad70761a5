"""Iceberg tables at a snapshot, through pyiceberg: from a metadata file or the table's folder, without a catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs

from batch_assets.errors import SnapshotError
from batch_assets.storage.table_sources import (
    TableVersion,
    missing_library,
    one_line,
    s3_endpoint,
    s3_region,
    s3_setting,
    what_is_there,
)

_METADATA = re.compile(r"^v?(\d+)(?:-[^/]*)?\.metadata\.json$")
_SNAPSHOTS_SHOWN = 5


def find_iceberg(address: str, snapshot_id: int | None) -> TableVersion:
    """A snapshot of an Iceberg table, the current one when `snapshot_id` is None; no record is read.

    Raises SnapshotError for what is no Iceberg table, for a snapshot that it has not, and for what
    pyiceberg cannot read (equality deletes).
    """
    try:
        from pyiceberg.exceptions import ValidationError
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise missing_library("pyiceberg") from error
    properties = _properties()
    location = address if address.endswith(".metadata.json") else _latest_metadata(address, properties)
    try:
        table = StaticTable.from_metadata(location, properties)
    except (OSError, ValueError, KeyError, ValidationError) as error:
        raise SnapshotError(
            f"{location} is no metadata file of an Iceberg table that can be read: {one_line(error)}. Set snapshot.path "
            "in defs.yaml to the table's folder or its metadata file. Nothing was pinned."
        ) from error
    wanted = snapshot_id if snapshot_id is not None else getattr(table.current_snapshot(), "snapshot_id", None)
    if wanted is None or table.snapshot_by_id(wanted) is None:
        raise _no_snapshot(address, table, snapshot_id)
    try:
        # Without a snapshot named, the columns are the table's; a snapshot has those of its time.
        return _found(address, table, table.scan(snapshot_id=snapshot_id), wanted)
    except (OSError, ValueError, NotImplementedError, ValidationError) as error:
        raise SnapshotError(
            f"Snapshot {wanted} of the Iceberg table {address} cannot be read by pyiceberg: {one_line(error)}. Compact the "
            "table (which applies its deletes), or pin a snapshot that can be read. Nothing was pinned."
        ) from error


def _found(address: str, table: Any, scan: Any, snapshot_id: int) -> TableVersion:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
    files = [
        [task.file.file_path, task.file.file_size_in_bytes, sorted(one.file_path for one in task.delete_files)]
        for task in tasks
    ]
    return TableVersion(
        name=f"{address}@{snapshot_id}",
        parts=["iceberg", str(table.metadata.table_uuid), snapshot_id, scan.projection().model_dump_json(), files],
        size=sum(task.file.file_size_in_bytes for task in tasks),
        schema=schema_to_pyarrow(scan.projection(), include_field_ids=False),
        batches=lambda: _by_file(table, scan, tasks),
        is_ordered=True,
    )


def _by_file(table: Any, scan: Any, tasks: list[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of one file after the other, in the order of their names, without those that were deleted."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    reader = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
    for task in tasks:
        # A task at a time: given all of them, pyiceberg reads ahead of us into memory.
        yield from reader.to_record_batches([task])


def _latest_metadata(address: str, properties: dict[str, str]) -> str:
    """The newest metadata file of a table's folder. Raises SnapshotError when there is none, or more than one."""
    try:
        files, folder = _file_system(address, properties)
        found = files.get_file_info(pyarrow.fs.FileSelector(f"{folder}/metadata"))
    except (OSError, pa.ArrowException) as error:
        raise _no_table(address, error) from error
    numbered = [(int(match[1]), str(info.base_name)) for info in found if (match := _METADATA.match(info.base_name))]
    if not numbered:
        raise _no_table(address, None)
    newest = sorted(name for number, name in numbered if number == max(numbered)[0])
    if len(newest) > 1:
        raise SnapshotError(
            f"The Iceberg table {address} has {len(newest)} metadata files of the same number: {', '.join(newest)}. One is "
            "left over from a commit that failed; set snapshot.path in defs.yaml to the one that the catalog names."
        )
    return f"{address}/metadata/{newest[0]}"


def _file_system(address: str, properties: dict[str, str]) -> tuple[pyarrow.fs.FileSystem, str]:
    scheme, separator, path = address.partition("://")
    if not separator:
        return pyarrow.fs.LocalFileSystem(), address
    if scheme not in ("s3", "s3a"):
        return pyarrow.fs.FileSystem.from_uri(address)  # type: ignore[no-any-return]
    options = {"endpoint_override": properties.get("s3.endpoint"), "region": properties.get("s3.region")}
    return pyarrow.fs.S3FileSystem(**{name: value for name, value in options.items() if value}), path


def _no_table(address: str, error: Exception | None) -> SnapshotError:
    why = f": {one_line(error)}" if error is not None else ""
    return SnapshotError(
        f"{address} is no Iceberg table (no metadata/*.metadata.json; {what_is_there(address)}){why}. Set snapshot.path in "
        "defs.yaml to the table's folder or its metadata file. Nothing was pinned."
    )


def _no_snapshot(address: str, table: Any, snapshot_id: int | None) -> SnapshotError:
    known = sorted(table.snapshots(), key=lambda one: one.timestamp_ms, reverse=True)
    if not known:
        return SnapshotError(f"The Iceberg table {address} has no snapshot, so no rows; there is nothing to do.")
    shown = ", ".join(
        f"{one.snapshot_id} ({datetime.fromtimestamp(one.timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC)"
        for one in known[:_SNAPSHOTS_SHOWN]
    )
    return SnapshotError(
        f"The Iceberg table {address} has no snapshot {snapshot_id}; the newest of its {len(known)} are {shown}. Set "
        "snapshot.snapshot_id in defs.yaml to one of them, or leave it out for the current one. Nothing was pinned."
    )


def _properties() -> dict[str, str]:
    """What pyiceberg wants said; it knows no AWS_ENDPOINT_URL."""
    said = {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.endpoint": s3_endpoint(),
        "s3.region": s3_region(),
        "s3.access-key-id": s3_setting("AWS_ACCESS_KEY_ID"),
        "s3.secret-access-key": s3_setting("AWS_SECRET_ACCESS_KEY"),
        "s3.session-token": s3_setting("AWS_SESSION_TOKEN"),
    }
    return {name: value for name, value in said.items() if value is not None}
