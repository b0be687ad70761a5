"""`published`: what readers see. Materializing it moves the pointer, if the gate allows it.

The checks run in the same run as `published` (job `<job>__gate_and_publish`) or before it; either
way `operations.publish` reads their verdicts from the ledger and refuses without them.
"""

from collections.abc import Mapping

import dagster as dg
from pydantic import Field

from batch_assets.assets.failures import as_dagster_failures
from batch_assets.assets.job_version import version_key
from batch_assets.assets.opened import opened
from batch_assets.assets.published_page import published_metadata
from batch_assets.assets.snapshot import snapshot_key
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.publish import Published, publish, rollback
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion


class PublishConfig(dg.Config):
    """Which version readers are to see."""

    version: str | None = Field(None, description="a version's id; the newest one when left out")


class RollbackConfig(dg.Config):
    """Which version readers go back to."""

    to: str | None = Field(None, description="an earlier published version; the one before when left out")


def published_key(job: str) -> dg.AssetKey:
    return dg.AssetKey([job, "published"])


def published_asset(settings: Settings, job: Job, newest: RegisteredVersion | None) -> dg.AssetsDefinition:
    """The pointer of a job, downstream of its newest version."""
    name = job.name
    dep = (
        dg.AssetDep(version_key(newest), partition_mapping=dg.AllPartitionMapping())
        if newest is not None
        else dg.AssetDep(snapshot_key(name))
    )

    @dg.asset(
        key=published_key(name),
        group_name=name,
        deps=[dep],
        kinds={"duckdb"},
        description=(
            f"What readers of `published.{name}` see: always one whole version that passed its checks.\n\n"
            f"Materializing moves the pointer to the newest version (or to `version` in the launchpad). The job "
            f"`{gate_job_name(name)}` runs the checks first; `{rollback_job_name(name)}` goes back."
        ),
    )
    def published(context: dg.AssetExecutionContext, config: PublishConfig) -> dg.MaterializeResult[None]:
        with as_dagster_failures(), opened(settings) as deployment:
            done = publish(deployment, deployment.resolve(config.version or name))
            context.log.info(_sentence(done))
            return dg.MaterializeResult(metadata=_metadata(deployment, done, "publish"))

    return published


def gate_job_name(job: str) -> str:
    return f"{job}__gate_and_publish"


def rollback_job_name(job: str) -> str:
    return f"{job}__rollback"


def rollback_job(settings: Settings, name: str) -> dg.JobDefinition:
    """A job that moves the pointer back."""

    @dg.op(name=f"{name}__move_back")
    def move_back(context: dg.OpExecutionContext, config: RollbackConfig) -> None:
        with as_dagster_failures(), opened(settings) as deployment:
            done = rollback(deployment, name, config.to)
            context.log.info(_sentence(done))
            context.log_event(
                dg.AssetMaterialization(published_key(name), metadata=_metadata(deployment, done, "rollback"))
            )

    @dg.job(name=rollback_job_name(name), description=f"Points readers of published.{name} back at the version before.")
    def roll_back() -> None:
        move_back()

    return roll_back


def report_move(deployment: Deployment, done: Published, kind: str) -> None:
    """Tell Dagster of a move of the pointer that was made on the command line, so that its UI stays true.

    Nothing happens in a home that Dagster was never used in.
    """
    home = deployment.settings.dagster_home
    if not done.changed or not (home / "dagster.yaml").is_file():
        return
    with dg.DagsterInstance.from_config(str(home)) as instance:
        event = dg.AssetMaterialization(published_key(done.job), metadata=_metadata(deployment, done, kind))
        instance.report_runless_asset_event(event)


def _sentence(done: Published) -> str:
    if not done.changed:
        return f"{done.job} shows {done.job_version} already; nothing to do."
    return f"{done.job} now shows {done.job_version} (before: {done.previous or 'nothing'})."


def _metadata(deployment: Deployment, done: Published, kind: str) -> Mapping[str, dg.MetadataValue]:
    return {
        "version": dg.MetadataValue.text(done.job_version),
        "previous": dg.MetadataValue.text(done.previous or "nothing"),
        "move": dg.MetadataValue.text(kind if done.changed else "none: it was published already"),
        **published_metadata(deployment, done.job, done.job_version),
    }
