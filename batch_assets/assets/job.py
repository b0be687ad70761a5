"""All definitions of one job: snapshot → versions → published, the checks between, and two jobs."""

from __future__ import annotations

import dagster as dg

from batch_assets.assets.checks import version_checks
from batch_assets.assets.job_version import version_asset, version_key
from batch_assets.assets.nightly import nightly_job, nightly_schedule
from batch_assets.assets.opened import opened
from batch_assets.assets.publication import gate_job_name, published_asset, published_key, rollback_job
from batch_assets.assets.shown import shown_versions
from batch_assets.assets.snapshot import snapshot_asset
from batch_assets.assets.version_page import version_page
from batch_assets.operations.jobs import Job
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion


def job_definitions(settings: Settings, job: Job) -> dg.Definitions:
    """Definitions of a job and of its versions that are shown."""
    with opened(settings) as deployment:
        shown = [(one, version_page(deployment, one)) for one in shown_versions(deployment.ledger, job.name)]
    newest = shown[0][0] if shown else None
    nightly = [nightly_job(settings, job)] if job.spec.nightly is not None else []
    return dg.Definitions(
        assets=[
            snapshot_asset(settings, job),
            *(version_asset(settings, job, registered, page) for registered, page in shown),
            published_asset(settings, job, newest),
        ],
        asset_checks=[version_checks(settings, job, registered) for registered, _ in shown],
        jobs=[
            rollback_job(settings, job.name),
            *([_gate_job(job.name, newest)] if newest is not None else []),
            *nightly,
        ],
        schedules=[nightly_schedule(settings, job, job.spec.nightly, one) for one in nightly if job.spec.nightly],
    )


def _gate_job(job: str, newest: RegisteredVersion) -> dg.UnresolvedAssetJobDefinition:
    """The checks of the newest version, then `published`: a blocking check that fails stops it.

    The shards are not part of it. Their asset never emits its output, and Dagster skips the checks
    of an asset that does not emit in the same run.
    """
    return dg.define_asset_job(
        gate_job_name(job),
        selection=dg.AssetSelection.checks_for_assets(version_key(newest))
        | dg.AssetSelection.assets(published_key(job)),
        description=f"Checks {newest.job_version} and, if nothing that blocks has failed, publishes it.",
    )
