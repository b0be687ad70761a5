"""The gate as asset checks: one check per verdict, numbers and thresholds as metadata.

The verdicts come from `operations.check`, which also keeps them in the ledger; publishing reads
them there, so a check run here counts for the command line and the other way round.
"""

from collections.abc import Iterator

import dagster as dg

from batch_assets.assets.failures import as_dagster_failures
from batch_assets.assets.job_version import node_name, version_key
from batch_assets.assets.opened import opened
from batch_assets.assets.report_link import report_metadata
from batch_assets.assets.verdict_events import check_result
from batch_assets.core.spec import GateSpec
from batch_assets.operations.check import CHECKS, check
from batch_assets.operations.jobs import Job
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion


def version_checks(settings: Settings, job: Job, registered: RegisteredVersion) -> dg.AssetChecksDefinition:
    """The job's checks on one version."""
    key = version_key(registered)
    specs = [
        dg.AssetCheckSpec(name=name, asset=key, description=_purpose(name), blocking=_is_blocking(name, job.spec.gate))
        for name in job.required_checks
    ]

    @dg.multi_asset_check(
        name=f"{node_name(registered)}__checks",
        specs=specs,
        can_subset=True,
        pool="gpu"
        if "evaluation" in job.required_checks and job.suite.judge is not None
        else None,  # it runs an engine
        description=f"Judges {registered.job_version} as it is now.",
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected = {one.name for one in context.selected_asset_check_keys}
        wanted = [name for name in job.required_checks if name in selected]
        with as_dagster_failures(), opened(settings) as deployment:
            judged = deployment.ledger.plans.get(registered.job_version)
            verdicts = check(deployment, judged, only=wanted)
            report = report_metadata(context.instance, deployment, judged)
        for verdict in verdicts:
            context.log.info(f"{verdict.check}: {'passed' if verdict.passed else 'failed'}: {verdict.summary}")
            yield check_result(key, verdict, report)

    return checks


def _purpose(name: str) -> str:
    """The first paragraph of the check's own documentation."""
    text = CHECKS[name].__doc__ or name
    return " ".join(text.split("\n\n")[0].split())


def _is_blocking(name: str, gate: GateSpec) -> bool:
    section = {"drift": gate.drift, "evaluation": gate.evaluation, "dead_letters": gate.dead_letters}.get(name)
    return section is None or section.blocking  # coverage, schema, access_labels and one_recipe always block
