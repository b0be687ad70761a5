"""Assembling a worker for a version, and running it in this process."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from batch_assets.core.output_schema import load_output_model
from batch_assets.core.version import JobVersion
from batch_assets.engine.create import create_engine
from batch_assets.engine.protocol import EngineInfo
from batch_assets.errors import IncompleteError, SpecError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.intervene import refuse_cancelled
from batch_assets.operations.job_files import SPEC_FILE
from batch_assets.operations.jobs import Job
from batch_assets.operations.plan import preparer_for
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.sealed import Sealer
from batch_assets.worker.committer import Committer
from batch_assets.worker.events import ShardSealed
from batch_assets.worker.identity import owner_name
from batch_assets.worker.loop import Worker
from batch_assets.worker.orphans import EngineProcesses
from batch_assets.worker.report import ShardStats, WorkerLimits, WorkerReport


def _ignore(_event: ShardSealed, _stats: ShardStats) -> None:
    """Nobody wants to hear of sealed shards."""


def work(
    deployment: Deployment,
    registered: RegisteredVersion,
    *,
    wanted: range | None = None,
    on_sealed: Callable[[ShardSealed, ShardStats], None] = _ignore,
    should_stop: Callable[[], bool] = lambda: False,
) -> WorkerReport:
    """Run one worker until no wanted shard is left, or it is told to stop.

    Several workers may run on the same version, here or elsewhere; each shard is leased by one.
    Raises ModelError or SnapshotError before any engine starts when what was pinned has changed.
    """
    refuse_cancelled(registered)
    version = deployment.version(registered)
    if not registered.planned:
        raise IncompleteError(f"{version.id} is not planned yet; run `batch-assets plan {version.id}` first.")
    shards = range(version.shards) if wanted is None else wanted
    if deployment.ledger.leases.outstanding(version.id, shards) == 0:
        return WorkerReport()  # before reading models and snapshots: nothing to do costs nothing
    job = deployment.job(version.job)
    _check_engine(job, version)
    reader = deployment.reader(version)
    reader.verify_files()
    model = output_model(deployment, version)
    owner = owner_name()
    script = job.folder / job.spec.engine.script if job.spec.engine.script else None
    engine = create_engine(
        version,
        job.spec.engine,
        models=deployment.settings.models,
        json_schema=model.model_json_schema(),
        worker=owner,
        script=script,
    )
    sealer = Sealer(version, model, reader, deployment.objects)

    def committer_for(info: EngineInfo) -> Committer:
        return Committer(deployment.ledger, sealer, engine_label=_label(info))

    worker = Worker(
        version=version,
        wanted=shards,
        owner=owner,
        ledger=deployment.ledger,
        engine=engine,
        preparer=preparer_for(deployment, version),
        model=model,
        committer_for=committer_for,
        limits=_limits(job),
        on_sealed=on_sealed,
        should_stop=should_stop,
        engine_processes=EngineProcesses(deployment.settings.root / "engines"),
    )
    return worker.run()


def output_model(deployment: Deployment, version: JobVersion) -> type[BaseModel]:
    """The pydantic model as it was pinned."""
    where = deployment.version_files.key(version.job, version.id)
    return load_output_model(version.output_schema.source, where=f"{where}: output_schema")


def _label(info: EngineInfo) -> str:
    """What is stored with every result: what ran it, and how (tuning is no part of the version)."""
    return f"{info.kind} {info.version} on {info.device}, {info.in_flight_max} in flight"


def _check_engine(job: Job, version: JobVersion) -> None:
    pinned = "scripted" if version.model.provider == "scripted" else "vllm"
    if job.spec.engine.kind != pinned:
        raise SpecError(
            f"{job.folder / SPEC_FILE}: key 'engine.kind': found {job.spec.engine.kind!r}, but {version.id} was pinned for "
            f"the {pinned} engine. Pin again to get a version for the engine that you want."
        )


def _limits(job: Job) -> WorkerLimits:
    engine = job.spec.engine
    return WorkerLimits(
        lease_s=job.spec.lease_s,
        renew_every_s=job.spec.renew_every_s,
        start_deadline_s=engine.start_deadline_s,
        progress_deadline_s=engine.progress_deadline_s,
        record_deadline_s=engine.record_deadline_s,
        restarts_max=engine.restarts_max,
        recoveries_max=job.spec.recoveries_max,
        drain_s=job.spec.drain_s,
    )
