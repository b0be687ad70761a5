"""Iceberg snapshots with delete files, which pyiceberg reads and does not write.

Format: the Iceberg table specification, version 2: position and equality delete files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record

SNAPSHOT = 4242
# Field ids that the specification reserves for the columns of a position delete file.
_PATH = pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"})
_POSITION = pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"})
_ID = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_rows(metadata: Path, rows: list[int]) -> Path:
    """A snapshot without the rows of the only data file at these positions; returns its metadata file."""
    (task,) = StaticTable.from_metadata(str(metadata)).scan().plan_files()
    places = pa.table({"file_path": [task.file.file_path] * len(rows), "pos": rows}, pa.schema([_PATH, _POSITION]))
    return _commit(metadata, places, content=DataFileContent.POSITION_DELETES)


def delete_ids(metadata: Path, ids: list[int]) -> Path:
    """A snapshot without the rows that have these ids, as streaming writers delete; returns its metadata file."""
    values = pa.table({"id": ids}, pa.schema([_ID]))
    return _commit(metadata, values, content=DataFileContent.EQUALITY_DELETES, equality_ids=[1])


def _commit(metadata: Path, deletes: pa.Table, **arguments: Any) -> Path:
    table, io, folder = StaticTable.from_metadata(str(metadata)), PyArrowFileIO(), metadata.parent
    parent = table.current_snapshot()
    assert parent is not None
    assert parent.sequence_number is not None
    sequence = parent.sequence_number + 1
    path = folder.parent / "data" / f"deletes-{SNAPSHOT}.parquet"
    pq.write_table(deletes, path)
    file = DataFile.from_args(
        file_path=str(path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=deletes.num_rows,
        file_size_in_bytes=path.stat().st_size,
        **arguments,
    )
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=SNAPSHOT, data_file=file)
    output = io.new_output(str(folder / f"deletes-{SNAPSHOT}.avro"))
    with _DeleteManifest(table.spec(), table.schema(), output, SNAPSHOT, "deflate") as manifest:
        manifest.add_entry(entry)
    listed = folder / f"snap-{SNAPSHOT}.avro"
    with write_manifest_list(
        2, io.new_output(str(listed)), SNAPSHOT, parent.snapshot_id, sequence, "deflate"
    ) as manifests:
        manifests.add_manifests([*parent.manifests(table.io), manifest.to_manifest_file()])
    body = json.loads(metadata.read_text())
    snapshot = {
        **body["snapshots"][-1],
        "snapshot-id": SNAPSHOT,
        "sequence-number": sequence,
        "manifest-list": str(listed),
    }
    body["snapshots"].append({**snapshot, "parent-snapshot-id": parent.snapshot_id})
    body.update({"current-snapshot-id": SNAPSHOT, "last-sequence-number": sequence})
    body["refs"]["main"]["snapshot-id"] = SNAPSHOT
    written = metadata.with_name("00002-deletes.metadata.json")
    written.write_text(json.dumps(body))
    return written
