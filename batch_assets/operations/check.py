"""Running the checks on a version and keeping their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from batch_assets.core.sql_text import parquet_rows, quote_text
from batch_assets.core.verdicts import Verdict
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.intervene import refuse_retired
from batch_assets.operations.publish import basis_digests, content_digest
from batch_assets.operations.work import output_model
from batch_assets.storage.objects import Objects
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.progress import ShardRow
from batch_assets.storage.scan import MEMORY_LIMIT, create_snapshot_view
from batch_assets.storage.sealed import sealed_schema
from batch_assets.validation.coverage import coverage
from batch_assets.validation.dead_letters import dead_letters
from batch_assets.validation.drift import drift
from batch_assets.validation.evaluation import evaluation
from batch_assets.validation.evidence import Evidence, SealedShard
from batch_assets.validation.schema import schema

CHECKS: dict[str, Callable[[Evidence], Verdict]] = {
    "coverage": coverage,
    "schema": schema,
    "drift": drift,
    "evaluation": evaluation,
    "dead_letters": dead_letters,
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
    job = deployment.job(registered.job)
    names = job.required_checks if only is None else only
    content = content_digest(deployment, registered.job_version)
    basis = basis_digests(job, deployment.ledger.publications.current(job.name))
    with gather_evidence(deployment, registered) as evidence:
        verdicts = [CHECKS[name](evidence) for name in names]
    deployment.ledger.publications.record_verdicts(registered.job_version, content, basis, verdicts)
    return verdicts


@contextmanager
def gather_evidence(deployment: Deployment, registered: RegisteredVersion) -> Iterator[Evidence]:
    """Open everything that the checks look at."""
    job, version = deployment.job(registered.job), deployment.version(registered)
    reader, model = deployment.reader(version), output_model(deployment, version)
    reader.verify_files()
    sealed = sealed_shards(deployment, version.id)
    columns = sealed_schema(version, model, reader.schema())
    baseline = deployment.ledger.publications.current(job.name)
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"SET temp_directory = {quote_text(str(deployment.settings.root / 'scratch'))}")
        deployment.objects.attach(connection)
        create_snapshot_view(connection, reader)
        _create_results(connection, "results", sealed, columns)
        _create_dead_letters(connection, deployment, version.id)
        if baseline is not None:
            _create_results(connection, "baseline", sealed_shards(deployment, baseline), columns)
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
            connection=connection,
        )


def sealed_shards(deployment: Deployment, job_version: str) -> list[SealedShard]:
    """The version's sealed files as the ledger recorded them."""
    return [
        _sealed_shard(deployment.objects, row)
        for row in deployment.ledger.progress.shards(job_version, state="completed")
    ]


def _sealed_shard(objects: Objects, row: ShardRow) -> SealedShard:
    key = str(row.sealed_key)
    return SealedShard(
        key=key,
        uri=objects.uri(key),
        sha256=str(row.sealed_sha256),
        rows=row.results,
        is_readable=_is_readable(objects, key),
        open=partial(objects.open, key),
        digest=lambda: objects.sha256(key) if objects.exists(key) else None,
    )


def _is_readable(objects: Objects, key: str) -> bool:
    if not objects.exists(key):
        return False
    with objects.open(key) as file:
        try:
            pq.read_metadata(file)
        except (OSError, pa.ArrowException):
            return False
    return True


def _pinned_field(field: str | None, model: type[BaseModel]) -> str | None:
    """The field, if the version's own schema has it: the job folder may have moved on."""
    return field if field in model.model_fields else None


def _create_results(
    connection: duckdb.DuckDBPyConnection, name: str, sealed: Sequence[SealedShard], columns: pa.Schema
) -> None:
    present = [shard.uri for shard in sealed if shard.is_readable]
    if present:
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {parquet_rows(present)}")
    else:
        connection.register(f"{name}_empty", columns.empty_table())
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {name}_empty")


def _create_dead_letters(connection: duckdb.DuckDBPyConnection, deployment: Deployment, job_version: str) -> None:
    connection.execute("CREATE TABLE dead_letters (record_id VARCHAR, reason VARCHAR, error VARCHAR, shard INTEGER)")
    letters = deployment.ledger.outcomes.dead_letters(job_version)
    while batch := list(islice(letters, _BATCH)):
        rows = [
            {"record_id": one.record_id, "reason": one.reason, "error": one.error, "shard": one.shard} for one in batch
        ]
        connection.register("batch", pa.Table.from_pylist(rows, schema=_DEAD_LETTERS))
        connection.execute("INSERT INTO dead_letters SELECT * FROM batch")
        connection.unregister("batch")
