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
from batch_assets.assets.report_link import report_metadata
from batch_assets.assets.snapshot import snapshot_key
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.publish import Published, publish, rollback
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion


class PublishConfig(dg.Config):
    """Which version readers are to see."""

    version: str | None = Field(None, description="a version's id; the newest one when left out")
    override: str | None = Field(
        None,
        description=(
            "a reason to publish although checks have failed; kept in the history. Never overridden are coverage, "
            "access_labels, one_recipe, and a check that has no verdict"
        ),
    )


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
            registered = deployment.resolve(config.version or name)
            done = publish(
                deployment, registered, override=config.override, publish_id=_publish_id(context.run.run_id, name)
            )
            context.log.info(done.sentence)
            return dg.MaterializeResult(metadata=_metadata(context.instance, deployment, done, "publish"))

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
            done = rollback(deployment, name, config.to, publish_id=_publish_id(context.run.run_id, name))
            context.log.info(done.sentence)
            context.log_event(
                dg.AssetMaterialization(
                    published_key(name), metadata=_metadata(context.instance, deployment, done, "rollback")
                )
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
        event = dg.AssetMaterialization(published_key(done.job), metadata=_metadata(instance, deployment, done, kind))
        instance.report_runless_asset_event(event)


def _publish_id(run_id: str, job: str) -> str:
    """A step that is tried again in its run moves the pointer once, whatever others have published since."""
    return f"dagster:{run_id}:{job}"


def _metadata(
    instance: dg.DagsterInstance, deployment: Deployment, done: Published, kind: str
) -> Mapping[str, dg.MetadataValue]:
    shown = done.shows or done.job_version
    return {
        "version": dg.MetadataValue.text(shown),
        "previous": dg.MetadataValue.text(done.previous or "nothing"),
        "move": dg.MetadataValue.text(kind if done.changed else "none: it was published already"),
        **report_metadata(instance, deployment, deployment.ledger.plans.get(shown)),
        **published_metadata(deployment, done.job, shown),
    }
