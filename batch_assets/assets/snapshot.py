"""The snapshot asset: materializing it pins the job folder as it is now, and plans the version."""

from collections.abc import Mapping

import dagster as dg

from batch_assets.assets.failures import as_dagster_failures
from batch_assets.assets.opened import opened
from batch_assets.assets.reload import reload_ui
from batch_assets.assets.texts import clip, metadata_value
from batch_assets.core.version import JobVersion
from batch_assets.operations.jobs import Job
from batch_assets.operations.pin import pin
from batch_assets.operations.plan import plan
from batch_assets.settings import Settings

FILES_LISTED = 20
EVENTS_SEARCHED = 50
VERSION_METADATA = "version"


def snapshot_key(job: str) -> dg.AssetKey:
    return dg.AssetKey([job, "snapshot"])


def snapshot_asset(settings: Settings, job: Job) -> dg.AssetsDefinition:
    """The job's input as it was last pinned."""
    name = job.name

    @dg.asset(
        key=snapshot_key(name),
        group_name=name,
        kinds={"parquet"},
        description=(
            f"The records of {name}: {job.spec.snapshot.path} in {job.folder}.\n\n"
            "Materializing pins the job folder as it is now (snapshot, model, prompt, decoding, output schema) and "
            "plans its shards. When something of it has changed, that is a new job version, and it appears in the graph."
        ),
    )
    def snapshot(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with as_dagster_failures(), opened(settings) as deployment:
            pinned = pin(deployment, deployment.job(name))
            planned = plan(deployment, deployment.ledger.plans.get(pinned.job_version))
        if pinned.is_new:
            context.log.info(f"New version {pinned.job_version}. {reload_ui(settings)}")
        else:
            context.log.info(f"Nothing that decides an answer has changed: {pinned.job_version} stands.")
        for note in pinned.notes:
            context.log.info(f"Note: {note}.")
        return dg.MaterializeResult(
            metadata={
                **snapshot_metadata(pinned.version),
                "is_new": metadata_value(pinned.is_new),
                "notes": metadata_value(list(pinned.notes)),
                "dead_letters_known_in_advance": metadata_value(planned.dead_letters),
            }
        )

    return snapshot


def report_snapshot(instance: dg.DagsterInstance, version: JobVersion) -> None:
    """Tell Dagster of a version that was pinned on the command line, unless it knows."""
    key = snapshot_key(version.job)
    for record in instance.fetch_materializations(key, limit=EVENTS_SEARCHED).records:
        event = record.asset_materialization
        if event is not None and event.metadata.get(VERSION_METADATA) == metadata_value(version.id):
            return
    instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=snapshot_metadata(version)))


def snapshot_metadata(version: JobVersion) -> Mapping[str, dg.MetadataValue]:
    """What was pinned: files, counts, model."""
    files = [
        dg.TableRecord({"file": clip(pin.key), "rows": pin.rows, "bytes": pin.size, "sha256": pin.sha256})
        for pin in version.snapshot.sources[:FILES_LISTED]
    ]
    return {
        VERSION_METADATA: metadata_value(version.id),
        "dagster/row_count": metadata_value(version.records),
        "shards": metadata_value(version.shards),
        "model": metadata_value(version.model.name),
        "model_digest": metadata_value(version.model.digest),
        "files": metadata_value(len(version.snapshot.sources)),
        "first_files": dg.MetadataValue.table(files),
    }
