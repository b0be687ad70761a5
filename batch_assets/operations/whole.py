"""The whole that readers see, as views of a DuckDB connection: base ⊕ changes, newest wins, removals go.

An ordinary version is its own whole. An incremental one holds the changes to what was published when
it was pinned: a record that it answers, gives up or removes is no longer taken from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import duckdb
import pyarrow as pa

from batch_assets.core.sql_text import parquet_rows, quote_name
from batch_assets.core.version import JobVersion
from batch_assets.errors import StoreError, VersionError
from batch_assets.operations.deployment import Deployment
from batch_assets.storage.file_sets import DataFile, Manifest, read_manifest
from batch_assets.storage.plans import RegisteredVersion

_BATCH = 5000
DEAD_LETTERS = pa.schema([(name, pa.string()) for name in ("record_id", "reason", "error")] + [("shard", pa.int32())])


def content_digest(deployment: Deployment, job_version: str) -> str:
    """A digest over everything the version holds: its sealed files and its dead letters.

    Verdicts speak of one content; when a shard is added or replaced, they no longer count.
    """
    total = hashlib.sha256()
    for shard in deployment.ledger.progress.shards(job_version):
        line = f"{shard.shard} {shard.state} {shard.sealed_sha256} {shard.results} {shard.dead_letters}\n"
        total.update(line.encode())
    return total.hexdigest()


def sealed_files(deployment: Deployment, job_version: str) -> Iterator[DataFile]:
    """The files that hold this version's own results, in shard order."""
    for shard in deployment.ledger.progress.shards(job_version, state="completed"):
        yield DataFile(
            key=str(shard.sealed_key),
            sha256=str(shard.sealed_sha256),
            bytes=int(shard.sealed_bytes or 0),
            rows=shard.results,
        )


def published_files(deployment: Deployment, job_version: str) -> Iterator[DataFile]:
    """The files that readers see when this version is published, in order.

    Raises VersionError for an incremental version that was not merged yet, so has no such files.
    """
    manifest = merged_manifest(deployment, job_version)
    if manifest is not None:
        yield from manifest.results
    elif deployment.ledger.plans.get(job_version).base_version is None:
        yield from sealed_files(deployment, job_version)
    else:
        raise VersionError(f"{job_version} holds changes only, and they are merged when it is published.")


def merged_manifest(deployment: Deployment, job_version: str) -> Manifest | None:
    """The merged set of an incremental version; None when there is none."""
    merged = deployment.ledger.file_sets.of(job_version)
    return None if merged is None else read_manifest(deployment.objects, merged)


def create_rows(connection: duckdb.DuckDBPyConnection, name: str, uris: Sequence[str], columns: pa.Schema) -> None:
    """A view of the rows of these files; empty, with these columns, when there are none."""
    if uris:
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {parquet_rows(uris)}")
        return
    connection.register(f"{name}_empty", columns.empty_table())
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {name}_empty")


def create_published(
    connection: duckdb.DuckDBPyConnection, name: str, deployment: Deployment, job_version: str, columns: pa.Schema
) -> None:
    """Views NAME and NAME_dead_letters: what readers see of a version that is or was published.

    Raises StoreError when a file of it is missing or has another size.
    """
    create_rows(connection, name, _uris(deployment, published_files(deployment, job_version)), columns)
    manifest = merged_manifest(deployment, job_version)
    if manifest is None:
        create_dead_letters(connection, f"{name}_dead_letters", deployment, job_version)
    else:
        create_rows(connection, f"{name}_dead_letters", _uris(deployment, manifest.dead_letters), DEAD_LETTERS)


def create_dead_letters(
    connection: duckdb.DuckDBPyConnection, name: str, deployment: Deployment, job_version: str
) -> None:
    """Table NAME with the version's own dead letters, from the ledger."""
    connection.execute(f"CREATE TABLE {name} (record_id VARCHAR, reason VARCHAR, error VARCHAR, shard INTEGER)")
    letters = deployment.ledger.outcomes.dead_letters(job_version)
    while batch := list(islice(letters, _BATCH)):
        rows = [
            {"record_id": one.record_id, "reason": one.reason, "error": one.error, "shard": one.shard} for one in batch
        ]
        connection.register("batch", pa.Table.from_pylist(rows, schema=DEAD_LETTERS))
        connection.execute(f"INSERT INTO {name} SELECT * FROM batch").fetchall()
        connection.unregister("batch")


def create_whole(
    connection: duckdb.DuckDBPyConnection,
    deployment: Deployment,
    version: JobVersion,
    columns: pa.Schema,
    *,
    results: str = "results",
) -> None:
    """Views `whole` and `whole_dead_letters`, and for an incremental version what they are made of:
    `base`, `base_dead_letters`, `removed`, and `superseded` with the ids that the base no longer speaks for.

    Needs `snapshot`, `dead_letters` and the view that `results` names.
    """
    own = f"SELECT {_names(columns.names)} FROM {results}"
    if version.changes is None:
        connection.execute(f"CREATE VIEW whole AS {own}")
        connection.execute("CREATE VIEW whole_dead_letters AS SELECT * FROM dead_letters")
        return
    record_id = quote_name(version.snapshot.record_id)
    create_published(connection, "base", deployment, version.changes.base, columns)
    create_removed(connection, deployment, version, columns)
    # A table, since both views ask for it: some millions of ids at most, and DuckDB spills.
    connection.execute(
        f"CREATE TEMP TABLE superseded AS SELECT {record_id} AS id FROM snapshot UNION SELECT {record_id} FROM removed"
    ).fetchall()
    connection.execute(
        f"CREATE VIEW whole AS SELECT base.* FROM base ANTI JOIN superseded ON base.{record_id} = superseded.id "
        f"UNION ALL BY NAME {own}"
    )
    connection.execute(
        "CREATE VIEW whole_dead_letters AS SELECT base_dead_letters.* FROM base_dead_letters "
        "ANTI JOIN superseded ON base_dead_letters.record_id = superseded.id::VARCHAR "
        "UNION ALL BY NAME SELECT * FROM dead_letters"
    ).fetchall()


def create_removed(
    connection: duckdb.DuckDBPyConnection, deployment: Deployment, version: JobVersion, columns: pa.Schema
) -> None:
    """View `removed`: the ids that the incremental version takes away."""
    removed = version.changes.removed if version.changes is not None else None
    if removed is not None and deployment.objects.sha256(removed.key) != removed.sha256:
        raise StoreError(
            f"{deployment.objects.uri(removed.key)} is not the list of removed ids that was pinned; restore it from a backup."
        )
    uris = [] if removed is None else [deployment.objects.uri(removed.key)]
    id_column = pa.schema([columns.field(version.snapshot.record_id)])
    create_rows(connection, "removed", uris, id_column)


def verify_files(deployment: Deployment, files: Iterable[DataFile]) -> None:
    """Compare files with their digests, byte for byte. Raises StoreError naming the first that differs."""
    for file in files:
        if not deployment.objects.exists(file.key) or deployment.objects.sha256(file.key) != file.sha256:
            raise StoreError(
                f"{deployment.objects.uri(file.key)} is missing or not the file that was sealed. Nothing was published; "
                "restore the file from a backup."
            )


def lineage(deployment: Deployment, registered: RegisteredVersion) -> list[RegisteredVersion]:
    """The version, what it is based on, and so on down to one that holds a whole snapshot."""
    chain = [registered]
    while (base := chain[-1].base_version) is not None:
        chain.append(deployment.ledger.plans.get(base))
    return chain


def _uris(deployment: Deployment, files: Iterable[DataFile]) -> list[str]:
    uris = []
    for file in files:
        if deployment.objects.size(file.key) != file.bytes:
            raise StoreError(
                f"{deployment.objects.uri(file.key)} is missing or not as large as it was when it was sealed; restore it from "
                "a backup."
            )
        uris.append(deployment.objects.uri(file.key))
    return uris


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote_name, columns))
