"""A job version as a partitioned asset: plan → gpu_worker × N → settle, one partition per shard.

The asset's own output is never emitted. Dagster would record it for every partition of the run's
range, done or not; instead each shard's materialization is logged the moment it is sealed, and
stays when the step fails later. `settle` raises when shards of the range are missing, so that the
run does not look green.
"""

import warnings
from collections.abc import Iterator

import dagster as dg

from batch_assets.assets.failures import as_dagster_failures
from batch_assets.assets.gpu_step import RETRIES_MAX, RETRY_DELAY_S, run_worker
from batch_assets.assets.opened import opened
from batch_assets.assets.runs import is_from_command_line
from batch_assets.assets.sealed_shards import reused_event
from batch_assets.assets.snapshot import snapshot_key
from batch_assets.assets.verdict_events import standing_evaluation
from batch_assets.assets.version_page import VersionPage
from batch_assets.core.shards import contiguous, partition_key, shard_of_partition
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import current_verdicts
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.progress import ShardRow

NAMED_RANGES_MAX = 10  # of missing shards, in a message
EVENTS_PAGE = 1000


def version_key(registered: RegisteredVersion) -> dg.AssetKey:
    return dg.AssetKey([registered.job, registered.job_version])


def node_name(registered: RegisteredVersion) -> str:
    """Name of the version's graph; its ops and checks begin with it, since op names are global."""
    return f"{registered.job}__{registered.job_version}"


def version_asset(
    settings: Settings, job: Job, registered: RegisteredVersion, page: VersionPage
) -> dg.AssetsDefinition:
    """The asset of one version."""
    plan_op = _plan_op(settings, job, registered)
    gpu_worker = _worker_op(settings, registered)
    settle = _settle_op(settings, registered)
    out = dg.AssetOut(
        key=version_key(registered),
        is_required=False,
        dagster_type=dg.Nothing,
        description=page.description,
        metadata=page.metadata,
        kinds={page.kind},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # BackfillPolicy; pyproject's pin of dagster says why

        @dg.graph_multi_asset(
            name=node_name(registered),
            group_name=registered.job,
            ins={"snapshot": dg.AssetIn(key=snapshot_key(registered.job), dagster_type=dg.Nothing)},
            outs={"results": out},
            partitions_def=dg.StaticPartitionsDefinition([partition_key(shard) for shard in range(registered.shards)]),
            backfill_policy=dg.BackfillPolicy.single_run(),
            can_subset=False,
        )
        def results(snapshot: object) -> dict[str, object]:
            slots = plan_op.alias("plan")(snapshot)
            done = slots.map(lambda start: gpu_worker.alias("gpu_worker")(start))
            return {"results": settle.alias("settle")(done.collect())}

    return results


def _plan_op(settings: Settings, job: Job, registered: RegisteredVersion) -> dg.OpDefinition:
    @dg.op(
        name=f"{node_name(registered)}__plan",
        description="Plans the version if that is still to be done, and opens one slot per worker.",
        ins={"snapshot": dg.In(dg.Nothing)},
        out=dg.DynamicOut(dg.Nothing),
    )
    def plan_op(context: dg.OpExecutionContext) -> Iterator[dg.DynamicOutput[None]]:
        wanted = _wanted(context)
        with as_dagster_failures(), opened(settings) as deployment:
            known = deployment.ledger.plans.get(registered.job_version)
            plan(deployment, known)
            outstanding = deployment.ledger.leases.outstanding(registered.job_version, wanted)
        workers = min(job.spec.workers, outstanding)
        context.log.info(f"{outstanding:,} of {len(wanted):,} shards to do; {workers} workers.")
        for slot in range(workers):
            yield dg.DynamicOutput(None, mapping_key=f"w{slot}")

    return plan_op


def _worker_op(settings: Settings, registered: RegisteredVersion) -> dg.OpDefinition:
    @dg.op(
        name=f"{node_name(registered)}__gpu_worker",
        description="One warm engine: leases shards of the run's range until none is left.",
        ins={"start": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        retry_policy=dg.RetryPolicy(max_retries=RETRIES_MAX, delay=RETRY_DELAY_S),
        pool="gpu",  # unlimited until somebody sets a limit; keeps two runs off one GPU
    )
    def gpu_worker(context: dg.OpExecutionContext) -> None:
        run_worker(
            context,
            settings,
            key=version_key(registered),
            job_version=registered.job_version,
            wanted=_wanted(context),
        )

    return gpu_worker


def _settle_op(settings: Settings, registered: RegisteredVersion) -> dg.OpDefinition:
    @dg.op(
        name=f"{node_name(registered)}__settle",
        description="Reports shards that were completed before, and fails the run when shards are missing.",
        ins={"done": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing, is_required=False),
    )
    def settle(context: dg.OpExecutionContext) -> Iterator[None]:
        wanted = _wanted(context)
        with as_dagster_failures(), opened(settings) as deployment:
            reported = _reported(context, version_key(registered))
            known = _known(context, version_key(registered))
            missing = []
            for shard in _shards(deployment, registered, wanted):
                if shard.state != "completed":
                    missing.append(shard)
                elif partition_key(shard.shard) not in reported | known:
                    context.log_event(reused_event(version_key(registered), deployment.objects, shard))
            _log_standing_verdicts(context, deployment, registered)
        if missing:
            raise dg.Failure(description=_describe_missing(registered, missing, len(wanted)), allow_retries=False)
        yield from ()

    return settle


def _log_standing_verdicts(
    context: dg.OpExecutionContext, deployment: Deployment, registered: RegisteredVersion
) -> None:
    """Repeat the verdicts that hold for the version as it is now.

    A backfill from the UI plans the checks with the shards, and skips them because the output is
    never emitted. Without this, running a finished version again would show its checks as skipped.
    """
    key = version_key(registered)
    entries = context.instance.all_logs(context.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED)
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    planned = {event.asset_check_planned_data.asset_check_key for event in events}
    for verdict in current_verdicts(deployment, registered.job_version):
        if dg.AssetCheckKey(key, verdict.check) in planned:
            # The annotation forgets this kind of event; the method takes it.
            context.log_event(standing_evaluation(key, verdict))  # type: ignore[arg-type]


def _wanted(context: dg.OpExecutionContext) -> range:
    """The shards of this run: Dagster's single-run backfills cover one contiguous range."""
    if not context.has_partition_key_range and not context.has_partition_key:
        raise dg.Failure(
            description="This run names no partitions. Choose the shards to run under 'Materialize'.",
            allow_retries=False,
        )
    keys = context.partition_keys
    return range(shard_of_partition(keys[0]), shard_of_partition(keys[-1]) + 1)


def _shards(deployment: Deployment, registered: RegisteredVersion, wanted: range) -> list[ShardRow]:
    return [shard for shard in deployment.ledger.progress.shards(registered.job_version) if shard.shard in wanted]


def _reported(context: dg.OpExecutionContext, key: dg.AssetKey) -> set[str]:
    """The partitions that Dagster's index of assets shows as materialized by this run or one that it re-executes.

    Dagster writes an event to the log of its run first, and to the index after that. A worker killed
    in between leaves a shard that its run's log calls reported, and that nobody sees.
    """
    family, begun = _family(context)
    wanted = dg.AssetRecordsFilter(asset_key=key, after_timestamp=begun)
    reported: set[str] = set()
    cursor: str | None = None
    while True:
        page = context.instance.fetch_materializations(wanted, limit=EVENTS_PAGE, cursor=cursor)
        reported |= {
            record.partition_key for record in page.records if record.run_id in family and record.partition_key
        }
        if not page.has_more:
            return reported
        cursor = page.cursor


def _family(context: dg.OpExecutionContext) -> tuple[set[str], float | None]:
    """The run and those that it re-executes, and when the first was created (seconds since the epoch)."""
    family, begun = {context.run_id}, None
    record = context.instance.get_run_record_by_id(context.run_id)
    while record is not None:
        begun = record.create_timestamp.timestamp()  # parents are older
        family.add(record.dagster_run.run_id)
        parent = record.dagster_run.parent_run_id
        record = context.instance.get_run_record_by_id(parent) if parent else None
    return family, begun


def _known(context: dg.OpExecutionContext, key: dg.AssetKey) -> set[str]:
    """Partitions that need no new event: Dagster has one, and nobody asked it for another.

    A backfill counts the events of its own runs, so whoever runs shards from the UI hears of all of
    them again. The command line does not ask, and at 20 ms each a thousand events are felt.
    """
    return context.instance.get_materialized_partitions(key) if is_from_command_line(context.run) else set()


def _describe_missing(registered: RegisteredVersion, missing: list[ShardRow], wanted: int) -> str:
    ranges = list(contiguous([shard.shard for shard in missing]))
    names = ", ".join(
        partition_key(first) if first == last else f"{partition_key(first)} to {partition_key(last)}"
        for first, last in ranges[:NAMED_RANGES_MAX]
    )
    more = f" and {len(ranges) - NAMED_RANGES_MAX} more ranges" if len(ranges) > NAMED_RANGES_MAX else ""
    states = sorted({shard.state for shard in missing})
    version = registered.job_version
    found = (
        f"{len(missing):,} of {wanted:,} shards of {version} are not completed: {names}{more} ({', '.join(states)}). "
    )
    if "cancelled" in states:
        return f"{found}The version was cancelled; nothing takes it up again."
    if "needs_operator" in states:
        found += (
            f"`batch-assets shards {version} --state needs_operator` says what stands in the way of some, and "
            f"`batch-assets requeue {version} SHARD` hands them back. "
        )
    return f"{found}What is completed stays and is not computed again; press Re-execute to finish the rest."
