"""Sealed shards: the results of a finished shard as one immutable Parquet file, in record-id order.

Sealing reads the shard's stored results and the record ids and access labels of its snapshot rows,
so a result carries exactly the labels of its source. Whoever seals a shard writes the same rows.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from batch_assets.core.shards import partition_key, shard_range
from batch_assets.core.version import JobVersion
from batch_assets.errors import ShardTrouble
from batch_assets.storage.objects import Objects
from batch_assets.storage.outcomes import StoredResult
from batch_assets.storage.snapshot_columns import plain_type
from batch_assets.storage.snapshots import SnapshotReader
from batch_assets.storage.typed import arrow_fields, to_arrow_row

RECORD_CLASS = "_record_class"
RESERVED = ("_job_version", "_shard", "_attempt", "_finish_reason", "_engine", "_stored_at", RECORD_CLASS)


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """One sealed shard as recorded by `complete`."""

    key: str
    sha256: str
    size: int  # bytes
    rows: int


def sealed_key(version: JobVersion, shard: int, *, reopened: int = 0) -> str:
    """A shard that was reopened is sealed under another key: sealed files are never replaced."""
    again = f".r{reopened}" if reopened else ""
    return f"results/{version.job}/{version.id}/shard-{partition_key(shard)}{again}.parquet"


def sealed_schema(version: JobVersion, model: type[BaseModel], snapshot: pa.Schema) -> pa.Schema:
    """Record id, the schema's fields, access labels, and where each row came from.

    The record's class, as text, stands last, when the snapshot names one: files sealed by earlier
    releases lack it.
    """
    pin = version.snapshot
    record_class = [pa.field(RECORD_CLASS, pa.string())] if pin.record_class is not None else []
    return pa.schema(
        [
            pa.field(pin.record_id, snapshot.field(pin.record_id).type, nullable=False),
            *arrow_fields(model),
            *(snapshot.field(name).remove_metadata() for name in pin.access_labels),
            pa.field("_job_version", pa.string(), nullable=False),
            pa.field("_shard", pa.int32(), nullable=False),
            pa.field("_attempt", pa.int16(), nullable=False),
            pa.field("_finish_reason", pa.string(), nullable=False),
            pa.field("_engine", pa.string(), nullable=False),
            pa.field("_stored_at", pa.timestamp("ms", tz="UTC"), nullable=False),
            *record_class,
        ]
    )


def same_rows(stored: pa.Table, made: pa.Table) -> bool:
    """Whether a sealed file holds the rows that we would write.

    Earlier releases wrote no record class, and enums as plain strings.
    """
    if {*made.column_names} - {RECORD_CLASS} != {*stored.column_names} - {RECORD_CLASS}:
        return False
    try:
        return bool(made.select(stored.column_names).cast(stored.schema).equals(stored))
    except pa.ArrowException:
        return False


class Sealer:
    """Writes sealed shards of one version."""

    def __init__(self, version: JobVersion, model: type[BaseModel], reader: SnapshotReader, objects: Objects) -> None:
        self._version = version
        self._model = model
        self._reader = reader
        self._objects = objects
        self._schema = sealed_schema(version, model, reader.schema())

    def seal(self, shard: int, results: list[StoredResult], *, reopened: int = 0) -> SealedFile:
        """Write the shard's file, put if absent; returns what stands in the store afterwards.

        Raises ShardTrouble when a different file stands there already, or the results are not the snapshot's.
        """
        data = self._encode(shard, results)
        key = sealed_key(self._version, shard, reopened=reopened)
        if not self._objects.put_if_absent(key, data):
            # Another sealer came first. Same rows in other bytes (another Parquet writer) is fine.
            stored = self._objects.get(key)
            if not same_rows(pq.read_table(io.BytesIO(stored)), pq.read_table(io.BytesIO(data))):
                raise ShardTrouble(
                    f"{key} holds other rows than the ledger has for shard {shard}. Move the file away and run again; "
                    "then find out who wrote it."
                )
            data = stored
        return SealedFile(key=key, sha256=hashlib.sha256(data).hexdigest(), size=len(data), rows=len(results))

    def _encode(self, shard: int, results: list[StoredResult]) -> bytes:
        pin = self._version.snapshot
        by_id = {result.record_id: result for result in results}
        rows = shard_range(shard, shard_size=self._version.shard_size, records=self._version.records)
        copied = [*dict.fromkeys((pin.record_id, *pin.access_labels))]
        record_class = [pin.record_class] if pin.record_class is not None else []
        source = pa.concat_tables(self._reader.read_tables(rows, [*copied, *record_class]))
        ids = source.column(pin.record_id).to_pylist()
        found = sorted((row for row, id_ in enumerate(ids) if str(id_) in by_id), key=lambda row: ids[row])
        if len(found) != len(results):
            raise ShardTrouble(
                f"Shard {shard} has {len(results)} results, but only {len(found)} of them are in the snapshot."
            )
        # Ids and labels never become Python values: those have no nanoseconds, and may lose their time zone.
        taken = pa.array(found, type=pa.int64())
        columns = {name: source.column(name).cast(self._schema.field(name).type).take(taken) for name in copied}
        for name in record_class:
            columns[RECORD_CLASS] = _as_text(source.column(name)).take(taken)
        answers = [self._row(shard, by_id[str(ids[row])]) for row in found]
        for field in self._schema:
            if field.name not in columns:
                columns[field.name] = pa.array([answer[field.name] for answer in answers], type=field.type)
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        buffer = io.BytesIO()
        pq.write_table(table.combine_chunks(), buffer, compression="zstd")
        return buffer.getvalue()

    def _row(self, shard: int, result: StoredResult) -> dict[str, Any]:
        answer = to_arrow_row(self._model.model_validate_json(result.payload))
        return {
            **answer,
            "_job_version": self._version.id,
            "_shard": shard,
            "_attempt": result.attempt,
            "_finish_reason": result.finish_reason,
            "_engine": result.engine,
            "_stored_at": datetime.fromtimestamp(result.stored_at, UTC),
        }


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A class column as the text that the checks' SQL has for it, whatever its type."""
    plain = column.cast(plain_type(column.type))
    if pa.types.is_string(plain.type):
        return plain
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")  # where a shard is sealed must not show
        connection.register("source", pa.table({"value": plain}))
        return connection.sql("SELECT value::VARCHAR AS value FROM source").to_arrow_table().column("value")
