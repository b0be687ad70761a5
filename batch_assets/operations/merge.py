"""Merging an incremental version with its base into the files that it is published as.

One pass over base and changes, out of core: memory does not depend on the number of records. Files
are written anew each time and of equal size, so that reads after many nights are as fast as after one.
Whoever records a set first wins; files of a merge that was cut short, or came second, are orphans that
`sweep` removes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.sql_text import parquet_rows, quote_name, quote_text
from batch_assets.core.version import JobVersion
from batch_assets.errors import StoreError
from batch_assets.failpoints import failpoint
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.whole import (
    DEAD_LETTERS,
    content_digest,
    create_dead_letters,
    create_rows,
    create_whole,
    merged_manifest,
    published_files,
    sealed_files,
    verify_files,
)
from batch_assets.operations.work import output_model
from batch_assets.storage.file_sets import DataFile, FileSet, Manifest, read_manifest
from batch_assets.storage.objects import Objects, sha256_of
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.scan import MEMORY_LIMIT, create_snapshot_view
from batch_assets.storage.sealed import sealed_schema
from batch_assets.storage.warehouse import readable

FILE_ROWS = 500_000
GROUP_ROWS = 50_000  # what a writer holds in memory, and what a reader can skip
_HASH_MODULUS = 2**64


def merge(deployment: Deployment, registered: RegisteredVersion) -> Manifest:
    """The merged set of an incremental version; made unless there is one.

    The rows written are compared with those that the checks looked at: their number, and a sum of hashes
    over all columns. Raises StoreError when they differ or files cannot be read; nothing is recorded then.
    """
    reopened = deployment.ledger.publications.reopenings(registered.job_version)  # before looking
    content = content_digest(deployment, registered.job_version)
    standing = deployment.ledger.file_sets.of(registered.job_version)
    if standing is not None and standing.content_sha256 == content:
        return read_manifest(deployment.objects, standing)
    version = deployment.version(registered)
    base = version.changes.base if version.changes is not None else ""
    with _views(deployment, version) as (connection, columns):
        writer = _PartWriter(deployment.objects, f"merged/{version.job}/{version.id}/{uuid.uuid4().hex[:12]}")
        results = writer.write(connection, "whole", columns)
        letters = writer.write(connection, "whole_dead_letters", DEAD_LETTERS)
    manifest = Manifest(job_version=version.id, base_version=base, results=results, dead_letters=letters)
    data, key = manifest.dump(), f"{writer.prefix}/manifest.json"
    deployment.objects.put_if_absent(key, data)
    failpoint("merge.before_record")
    recorded = deployment.ledger.file_sets.record(
        FileSet(
            job_version=version.id,
            job=version.job,
            content_sha256=content,
            manifest_key=key,
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            rows=sum(file.rows for file in results),
            dead_letters=sum(file.rows for file in letters),
            bytes=sum(file.bytes for file in [*results, *letters]),
        ),
        reopened=reopened,
    )
    return read_manifest(deployment.objects, recorded)


@contextmanager
def _views(deployment: Deployment, version: JobVersion) -> Iterator[tuple[duckdb.DuckDBPyConnection, pa.Schema]]:
    reader, model = deployment.reader(version), output_model(deployment, version)
    reader.verify_files()
    columns = sealed_schema(version, model, reader.schema())
    _verify_inputs(deployment, version)
    with duckdb.connect() as connection, readable(f"The files of {version.id} or its base"):
        deployment.objects.attach(connection)
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"SET temp_directory = {quote_text(str(deployment.settings.root / 'scratch'))}")
        create_snapshot_view(connection, reader)
        uris = [deployment.objects.uri(file.key) for file in sealed_files(deployment, version.id)]
        create_rows(connection, "results", uris, columns)
        create_dead_letters(connection, "dead_letters", deployment, version.id)
        create_whole(connection, deployment, version, columns)
        yield connection, columns


def _verify_inputs(deployment: Deployment, version: JobVersion) -> None:
    """What is merged gets new digests, so damage that came before would never be found again."""
    verify_files(deployment, sealed_files(deployment, version.id))
    if version.changes is not None:
        verify_files(deployment, published_files(deployment, version.changes.base))
        base = merged_manifest(deployment, version.changes.base)
        verify_files(deployment, base.dead_letters if base is not None else ())


@dataclass
class _PartWriter:
    """Writes a view into files of `FILE_ROWS` rows, each put in place before the next is begun."""

    objects: Objects
    prefix: str
    _hashes: int = field(default=0, init=False)
    _rows: int = field(default=0, init=False)

    def write(self, connection: duckdb.DuckDBPyConnection, view: str, schema: pa.Schema) -> list[DataFile]:
        """The files, in order. Raises StoreError when they do not hold exactly the view's rows."""
        self._hashes = self._rows = 0
        hashed = _hash_of(schema)
        names = ", ".join(map(quote_name, schema.names))
        batches = connection.sql(f"SELECT {names}, {hashed} AS __hash FROM {view}").to_arrow_reader(GROUP_ROWS)
        files: list[DataFile] = []
        pending = _regrouped(self._tables(iter(batches), schema))
        first = next(pending, None)
        if first is None and view == "whole":
            first = schema.empty_table()  # a night that leaves no row is published as a table without rows
        while first is not None:
            with self.objects.scratch() as scratch:
                part = scratch / "part.parquet"
                rows, first = self._write_part(part, first, pending, schema)
                key = f"{self.prefix}/{view}-{len(files):05d}.parquet"
                self.objects.put_file_if_absent(key, part)
                files.append(DataFile(key=key, sha256=sha256_of(part), bytes=part.stat().st_size, rows=rows))
            failpoint("merge.after_part")
        self._verify(connection, files, hashed, view)
        return files

    def _tables(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            self._hashes += sum(int(chunk.to_numpy().sum(dtype="uint64")) for chunk in table["__hash"].chunks)
            self._rows += table.num_rows
            yield table.drop_columns(["__hash"]).cast(schema)

    @staticmethod
    def _write_part(
        part: Path, first: pa.Table, others: Iterator[pa.Table], schema: pa.Schema
    ) -> tuple[int, pa.Table | None]:
        """Rows written, and the table that the next part begins with."""
        rows, table = 0, first
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            while table is not None and rows < FILE_ROWS:
                writer.write_table(table, row_group_size=GROUP_ROWS)
                rows += table.num_rows
                table = next(others, None)
        return rows, table

    def _verify(self, connection: duckdb.DuckDBPyConnection, files: list[DataFile], hashed: str, view: str) -> None:
        written = (0, 0)
        if files:
            rows = parquet_rows(self.objects.uri(file.key) for file in files)
            written = connection.execute(
                f"SELECT count(*), coalesce(sum({hashed}::HUGEINT), 0) % {_HASH_MODULUS} FROM {rows}"
            ).fetchall()[0]
        if (int(written[0]), int(written[1])) != (self._rows, self._hashes % _HASH_MODULUS):
            raise StoreError(
                f"The merged files under {self.prefix} do not hold the {self._rows:,} rows of {view} that were to be "
                "written. Nothing was published; publish again."
            )


def _regrouped(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of `GROUP_ROWS`, and a smaller last one: DuckDB hands out what it likes."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        while rows >= GROUP_ROWS:
            whole = pa.concat_tables(held)
            yield whole.slice(0, GROUP_ROWS)
            held, rows = [whole.slice(GROUP_ROWS)], rows - GROUP_ROWS
    if rows:
        yield pa.concat_tables(held)


def _hash_of(schema: pa.Schema) -> str:
    return f"hash({', '.join(map(quote_name, schema.names))})"
