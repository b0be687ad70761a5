"""The nightly round: a schedule and its job, which pins, runs, checks and publishes each batch that waits.

The shards and the gate run as Dagster runs of their own, started from here as the command line starts
them: they load the definitions anew and so know the version that was pinned a moment ago. The UI is
told to do the same.
"""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import dagster as dg

from batch_assets.assets.failures import as_dagster_failures
from batch_assets.assets.instance import dagster_environment
from batch_assets.assets.launch import launch_gate
from batch_assets.assets.opened import opened
from batch_assets.assets.publication import published_key
from batch_assets.assets.reload import reload_ui
from batch_assets.assets.texts import metadata_value
from batch_assets.core.spec import NightlySpec
from batch_assets.errors import GateError, IncompleteError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.nightly import Batch, pending_batches, pin_batch
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import current_verdicts
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion

_UNDER_WAY = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]


def nightly_job_name(job: str) -> str:
    return f"{job}__nightly"


def nightly_job(settings: Settings, job: Job) -> dg.JobDefinition:
    """Takes every batch that waits, in order, through all steps; stops at the first that is refused."""
    name = job.name

    @dg.op(
        name=f"{name}__nightly_round",
        description="Pins, runs, checks and publishes each waiting batch of changes, one after the other.",
        out=dg.Out(list, description="what was done with each batch"),
    )
    def nightly_round(context: dg.OpExecutionContext) -> dg.Output[list[dict[str, Any]]]:
        with as_dagster_failures(), opened(settings) as deployment:
            batches = pending_batches(deployment, deployment.job(name))
            if not batches:
                context.log.info("No batch waits; nothing was done.")
            done = [_take(context, deployment, deployment.job(name), batch) for batch in batches]
        return dg.Output(done, metadata={"batches": dg.MetadataValue.json(done)})

    @dg.job(
        name=nightly_job_name(name),
        description=f"Publishes the changes that wait in {job.spec.nightly.batches if job.spec.nightly else ''}.",
    )
    def nightly() -> None:
        nightly_round()

    return nightly


def nightly_schedule(
    settings: Settings, job: Job, nightly: NightlySpec, target: dg.JobDefinition
) -> dg.ScheduleDefinition:
    """Starts the round each night, unless nothing waits or the last one is still under way; the tick says so."""
    name = job.name

    def decide(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        running = context.instance.get_runs(dg.RunsFilter(job_name=target.name, statuses=_UNDER_WAY), limit=1)
        if running:
            return dg.SkipReason(f"The round before is still under way (run {running[0].run_id}).")
        with opened(settings) as deployment:
            try:
                waiting = pending_batches(deployment, deployment.job(name))
            except GateError:
                return dg.RunRequest()  # the run fails with the reason, which nobody would look for in a tick
        if not waiting:
            return dg.SkipReason(f"No batch waits in {nightly.batches}.")
        return dg.RunRequest(tags={"batches": ", ".join(batch.name for batch in waiting)[:200]})

    return dg.ScheduleDefinition(
        name=f"{nightly_job_name(name)}_schedule",
        job=target,
        cron_schedule=nightly.cron,
        execution_timezone=nightly.timezone,
        execution_fn=decide,
        default_status=dg.DefaultScheduleStatus.RUNNING if nightly.enabled else dg.DefaultScheduleStatus.STOPPED,
        description="Pins, runs, checks and publishes what has changed.",
    )


def _take(context: dg.OpExecutionContext, deployment: Deployment, job: Job, batch: Batch) -> dict[str, Any]:
    """One batch, from its files to the pointer."""
    pinned = pin_batch(deployment, job, batch)
    plan(deployment, deployment.ledger.plans.get(pinned.job_version))
    registered = deployment.ledger.plans.get(pinned.job_version)
    context.log.info(f"{batch.name}: {registered.job_version}, {registered.records:,} records to answer.")
    context.log.info(reload_ui(deployment.settings))
    if registered.shards:
        _run_shards(deployment, registered)
    launch_gate(deployment, registered)
    did = _account(deployment, registered, batch)
    context.log.info(f"{batch.name}: published; {did['results']:,} results, {did['dead_letters']:,} dead letters.")
    context.log_event(
        dg.AssetObservation(
            published_key(job.name), metadata={key: metadata_value(value) for key, value in did.items()}
        )
    )
    return did


def _run_shards(deployment: Deployment, registered: RegisteredVersion) -> None:
    """A Dagster run of all shards, in a process that drains when this one goes away."""
    log = deployment.settings.root / "logs" / f"{registered.job_version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("ab") as sink,
        subprocess.Popen(
            [sys.executable, "-m", "batch_assets.assets.launch", registered.job_version, "--tie-to-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=dagster_environment(deployment.settings),
            start_new_session=True,  # an interruption is for us; the child hears of it when its stdin is closed
        ) as child,
    ):
        said = child.stdout.read().decode(errors="replace").strip() if child.stdout is not None else ""
    if child.returncode != 0:
        raise IncompleteError(
            said or f"The run of {registered.job_version} ended with status {child.returncode}; see {log}."
        )


def _account(deployment: Deployment, registered: RegisteredVersion, batch: Batch) -> dict[str, Any]:
    """What the UI shows of a batch that was published."""
    progress = deployment.ledger.progress.of(registered.job_version)
    merged = deployment.ledger.file_sets.of(registered.job_version)
    verdicts: Mapping[str, str] = {
        verdict.check: ("passed: " if verdict.passed else "failed: ") + verdict.summary
        for verdict in current_verdicts(deployment, registered.job_version)
    }
    return {
        "batch": batch.name,
        "version": registered.job_version,
        "base": registered.base_version,
        "records": registered.records,
        "results": progress.results,
        "dead_letters": progress.dead_letters,
        "rows_published": merged.rows if merged is not None else 0,
        "verdicts": dict(verdicts),
    }
