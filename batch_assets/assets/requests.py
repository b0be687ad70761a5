"""What the command line asks of Dagster, as runs of the jobs that the UI has too."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from batch_assets.assets.job_version import version_key
from batch_assets.assets.opened import opened
from batch_assets.assets.publication import gate_job_name, published_key
from batch_assets.assets.runs import RunLauncher, RunRequest
from batch_assets.assets.snapshot import report_snapshot
from batch_assets.core.shards import partition_key
from batch_assets.errors import VersionError
from batch_assets.operations.deployment import Deployment
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


def execute_request(
    settings: Settings,
    version: str,
    what: str,
    shards: tuple[int, int] | None,
    on_launcher: Callable[[Callable[[], None]], None] | None,
) -> str | None:
    """Run it here; returns why it failed, or None. `on_launcher` is given a function that stops the run."""
    with opened(settings) as deployment:
        registered = deployment.resolve(version)
        requests = _requests(deployment, registered, what, shards)
        pinned = deployment.version(registered)
    with dg.DagsterInstance.get() as instance:
        report_snapshot(instance, pinned)
        launcher = RunLauncher(instance)
        if on_launcher is not None:
            on_launcher(launcher.stop)
        for request in requests:
            outcome = launcher.execute(request)
            if not outcome.success:
                return outcome.problem
    return None


def _requests(
    deployment: Deployment, registered: RegisteredVersion, what: str, shards: tuple[int, int] | None
) -> list[RunRequest]:
    if what == "shards":
        return [_shards_request(registered, shards)]
    newest = deployment.resolve(registered.job)
    if what == "gate" and newest == registered:
        return [RunRequest(job=gate_job_name(registered.job), versions=_only(registered))]
    checks = RunRequest(
        checks=[
            dg.AssetCheckKey(version_key(registered), name) for name in deployment.job(registered.job).required_checks
        ],
        versions=_only(registered),
    )
    publish = RunRequest(
        assets=[published_key(registered.job)],
        config={"ops": {f"{registered.job}__published": {"config": {"version": registered.job_version}}}},
        versions={registered.job: [newest.job_version, registered.job_version]},
    )
    return {"checks": [checks], "publish": [publish], "gate": [checks, publish]}[what]


def _shards_request(registered: RegisteredVersion, shards: tuple[int, int] | None) -> RunRequest:
    first, last = shards or (0, registered.shards - 1)
    if not 0 <= first <= last < registered.shards:
        raise VersionError(
            f"{registered.job_version} has the shards 0 to {registered.shards - 1}; {first}-{last} is not a range of them."
        )
    return RunRequest(
        assets=[version_key(registered)],
        tags={RANGE_START: partition_key(first), RANGE_END: partition_key(last)},
        versions=_only(registered),
    )


def _only(registered: RegisteredVersion) -> dict[str, list[str]]:
    return {registered.job: [registered.job_version]}
