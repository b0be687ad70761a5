"""The report of a version, linked from the pages of the UI.

Browsers open no `file://` address from a page that came over HTTP, and Dagster's web server delivers
no files of ours; but it delivers what lies among its compute logs, to whoever may see the UI. The page
is put there too, and the link downloads it. Other log managers than the local one get no link, only
the file's path and the command that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager

from batch_assets.core.quoting import printable
from batch_assets.errors import BatchAssetsError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.report import write_report
from batch_assets.storage.plans import RegisteredVersion


def report_metadata(
    instance: dg.DagsterInstance, deployment: Deployment, registered: RegisteredVersion
) -> Mapping[str, dg.MetadataValue]:
    """Write the report as it is now, and say where it is. A report that cannot be written fails no step."""
    command = dg.MetadataValue.text(f"batch-assets report {registered.job_version} --output report.html")
    try:
        written = write_report(deployment, registered)
        link = _deliver(instance, registered, written)
    except (BatchAssetsError, OSError) as error:
        problem = dg.MetadataValue.text(f"not written: {printable(error, chars_max=500)}")
        return {"report": problem, "report_command": command}
    shown = dg.MetadataValue.url(link) if link is not None else dg.MetadataValue.path(str(written))
    return {"report": shown, "report_file": dg.MetadataValue.path(str(written)), "report_command": command}


def _deliver(instance: dg.DagsterInstance, registered: RegisteredVersion, written: Path) -> str | None:
    """Put a copy where the web server finds it; returns its address there."""
    logs = instance.compute_log_manager
    if not isinstance(logs, LocalComputeLogManager):
        return None
    key = ("reports", registered.job, registered.job_version)
    place = Path(str(logs.get_captured_local_path(key, "html")))
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(".draft")
    draft.write_bytes(written.read_bytes())
    draft.replace(place)
    return f"/logs/{'/'.join(key)}/html"
