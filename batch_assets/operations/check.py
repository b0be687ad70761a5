"""Running the checks on a version and keeping their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from batch_assets.core.sql_text import parquet_rows, quote_name, quote_text
from batch_assets.core.verdicts import Verdict
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.intervene import refuse_judge, refuse_retired
from batch_assets.operations.judge import ask_judge
from batch_assets.operations.publish import basis_digests
from batch_assets.operations.whole import (
    content_digest,
    create_dead_letters,
    create_published,
    create_whole,
    lineage,
    merged_manifest,
)
from batch_assets.operations.work import output_model
from batch_assets.storage.objects import Objects
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.progress import ShardRow
from batch_assets.storage.scan import MEMORY_LIMIT, create_snapshot_view
from batch_assets.storage.sealed import sealed_schema
from batch_assets.validation.access_labels import access_labels
from batch_assets.validation.coverage import coverage
from batch_assets.validation.dead_letters import dead_letters
from batch_assets.validation.drift import drift
from batch_assets.validation.evaluation import evaluation
from batch_assets.validation.evidence import Evidence, SealedShard, is_typed
from batch_assets.validation.one_recipe import one_recipe
from batch_assets.validation.schema import schema

CHECKS: dict[str, Callable[[Evidence], Verdict]] = {
    "coverage": coverage,
    "schema": schema,
    "drift": drift,
    "evaluation": evaluation,
    "dead_letters": dead_letters,
    "access_labels": access_labels,
    "one_recipe": one_recipe,
}
_BATCH = 5000
_DEAD_LETTERS = pa.schema([(name, pa.string()) for name in ("record_id", "reason", "error")] + [("shard", pa.int32())])


def check(deployment: Deployment, registered: RegisteredVersion, only: Sequence[str] | None = None) -> list[Verdict]:
    """Judge a version as it is now; all of the job's checks, or only the named ones.

    The verdicts are kept with a digest of the content that they speak of. A version that is not
    complete can be judged too: coverage then fails and says what is missing. Raises VersionError for
    one that is retired: what would be judged is gone.
    """
    refuse_retired(registered)
    deployment.ledger.publications.refuse_swept(registered.job_version)
    refuse_judge(registered)
    job = deployment.job(registered.job)
    names = job.required_checks if only is None else only
    content = content_digest(deployment, registered.job_version)
    with gather_evidence(deployment, registered) as evidence:
        if "evaluation" in names and job.suite.judge is not None:
            evidence = replace(evidence, judged=ask_judge(deployment, job, job.suite.judge, evidence))
        verdicts = [CHECKS[name](evidence) for name in names]
    basis = basis_digests(job, evidence.baseline_version)  # what was compared with, whatever is published by now
    deployment.ledger.publications.record_verdicts(registered.job_version, content, basis, verdicts)
    return verdicts


@contextmanager
def gather_evidence(deployment: Deployment, registered: RegisteredVersion) -> Iterator[Evidence]:
    """Open everything that the checks look at."""
    job, version = deployment.job(registered.job), deployment.version(registered)
    reader, model = deployment.reader(version), output_model(deployment, version)
    reader.verify_files()
    columns = sealed_schema(version, model, reader.schema())
    baseline = deployment.ledger.publications.current(job.name)
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"SET temp_directory = {quote_text(str(deployment.settings.root / 'scratch'))}")
        deployment.objects.attach(connection)
        create_snapshot_view(connection, reader)
        sealed = [
            _as_far_as_it_can_be_read(connection, shard) for shard in sealed_shards(deployment, version.id, columns)
        ]
        _create_results(connection, "results", sealed, columns)
        create_dead_letters(connection, "dead_letters", deployment, version.id)
        create_whole(connection, deployment, version, columns)
        if baseline is not None:
            _create_baseline(connection, deployment, baseline, columns)
        yield Evidence(
            version=version,
            model=model,
            gate=job.spec.gate,
            category_field=_pinned_field(job.category_field, model),
            evaluated_field=_pinned_field(job.evaluated_field, model),
            golden=job.golden(),
            sealed=sealed,
            sealed_schema=columns,
            baseline_version=baseline,
            recipes={one.job_version: deployment.version(one).recipe_digest for one in lineage(deployment, registered)},
            connection=connection,
            graders=job.suite.graders,
        )


def sealed_shards(deployment: Deployment, job_version: str, columns: pa.Schema) -> list[SealedShard]:
    """The version's sealed files as the ledger recorded them, and how their columns differ from these."""
    return [
        _sealed_shard(deployment.objects, row, columns)
        for row in deployment.ledger.progress.shards(job_version, state="completed")
    ]


def _sealed_shard(objects: Objects, row: ShardRow, columns: pa.Schema) -> SealedShard:
    key = str(row.sealed_key)
    rows, found = _footer(objects, key)
    expected = {} if rows is None else {field.name: field for field in columns}
    missing = tuple(name for name in expected if name not in found.names)
    return SealedShard(
        key=key,
        uri=objects.uri(key),
        shard=row.shard,
        sha256=str(row.sealed_sha256),
        rows=row.results,
        rows_found=rows,
        columns_missing=missing,
        columns_mistyped=tuple(
            name for name, field in expected.items() if name not in missing and not is_typed(found, field)
        ),
        open=partial(objects.open, key),
        digest=lambda: objects.sha256(key) if objects.exists(key) else None,
    )


def _footer(objects: Objects, key: str) -> tuple[int | None, pa.Schema]:
    """Row count and columns of a file; nothing when it is missing or no Parquet file."""
    if not objects.exists(key):
        return None, pa.schema([])
    with objects.open(key) as file:
        try:
            metadata = pq.read_metadata(file)
            columns = metadata.schema.to_arrow_schema()
        except (OSError, pa.ArrowException):
            return None, pa.schema([])
    names = [name.lower() for name in columns.names]
    # SQL does not tell such columns apart, so a file that has them is no file of ours and cannot be read as one.
    if len(set(names)) < len(names) or "_file" in names:
        return None, pa.schema([])
    return metadata.num_rows, columns


def _as_far_as_it_can_be_read(connection: duckdb.DuckDBPyConnection, shard: SealedShard) -> SealedShard:
    """A file that is not the one recorded is read through once: damage must not end a check halfway."""
    digest = shard.digest()
    shard = replace(shard, digest=lambda: digest)  # a file is hashed once, whichever checks ask for it
    if digest == shard.sha256 or not shard.is_readable:
        return shard
    try:
        connection.execute(f"SELECT max(hash(file)) FROM {parquet_rows([shard.uri])} AS file").fetchall()
    except (duckdb.Error, UnicodeDecodeError):
        return replace(shard, rows_found=None)
    return shard


def _pinned_field(field: str | None, model: type[BaseModel]) -> str | None:
    """The field, if the version's own schema has it: the job folder may have moved on."""
    return field if field in model.model_fields else None


def _create_results(
    connection: duckdb.DuckDBPyConnection, name: str, sealed: Sequence[SealedShard], columns: pa.Schema
) -> None:
    """A view of all files, with these columns whatever is in a file, and the file's URI as `_file`."""
    connection.register(f"{name}_empty", columns.empty_table())
    described = connection.execute(f"DESCRIBE {name}_empty").fetchall()
    types = {str(row[0]): str(row[1]) for row in described}
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for shard in sealed:
        if shard.is_readable:
            alike.setdefault((shard.columns_missing, shard.columns_mistyped), []).append(shard.uri)
    parts = []
    for (missing, mistyped), uris in sorted(alike.items()):
        casts = [f"TRY_CAST({quote_name(one)}::VARCHAR AS {types[one]}) AS {quote_name(one)}" for one in mistyped]
        nulls = [f"NULL::{types[one]} AS {quote_name(one)}" for one in missing]
        everything = f"* REPLACE ({', '.join(casts)})" if casts else "*"
        files = parquet_rows(uris, "filename = '_file'")
        parts.append(f"SELECT {', '.join([everything, *nulls])} FROM {files}")
    parts = parts or [f"SELECT *, NULL::VARCHAR AS _file FROM {name}_empty"]
    connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(parts)}")


def _create_baseline(
    connection: duckdb.DuckDBPyConnection, deployment: Deployment, job_version: str, columns: pa.Schema
) -> None:
    """The published version's rows: it may have another output schema, which its own files tell."""
    if merged_manifest(deployment, job_version) is not None:
        create_published(connection, "baseline", deployment, job_version, columns)
        return
    for row in deployment.ledger.progress.shards(job_version, state="completed"):
        rows, found = _footer(deployment.objects, str(row.sealed_key))
        if rows is not None:
            columns = found
            break
    _create_results(connection, "baseline", sealed_shards(deployment, job_version, columns), columns)
