"""The state of versions as plain values, for the CLI, the UI and scripts. Keys are stable."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from batch_assets.core.judges import is_judge
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.history import standing_override
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.progress import Progress


def status(deployment: Deployment, registered: RegisteredVersion) -> dict[str, Any]:
    """Everything about one version's progress."""
    progress = deployment.ledger.progress.of(registered.job_version)
    return {
        "job": registered.job,
        "version": registered.job_version,
        "published": deployment.ledger.publications.current(registered.job),
        "base": registered.base_version,
        "batch": registered.batch,
        "override": standing_override(deployment, registered.job),
        "planned": registered.planned,
        "records": registered.records,
        "results": progress.results,
        "dead_letters": progress.dead_letters,
        "dead_letters_by_reason": deployment.ledger.progress.dead_letters_by_reason(registered.job_version),
        "pending": registered.records - progress.results - progress.dead_letters,
        "shards": _shards(registered, progress),
        "records_per_s": _rounded(progress.records_per_s),
        "tokens_per_s": _rounded(progress.tokens_per_s),
        "prefix_hit_rate": _rounded(progress.prefix_hit_rate, 4),
        "eta_s": _rounded(progress.eta_s, 1) if registered.planned or progress.records else None,
        "duplicates_discarded": progress.duplicates_discarded,
        "waste": {cause: vars(total) for cause, total in deployment.ledger.waste.of(registered.job_version).items()},
        "workers": list(progress.workers),
        "cancelled": registered.cancelled,
        "retired": registered.retired,
    }


def versions(deployment: Deployment, job: str | None = None) -> list[dict[str, Any]]:
    """All versions of a job or of all jobs, the newest first."""
    current = deployment.ledger.publications.all_current()
    swept = deployment.ledger.retention.swept()
    listed = []
    for registered in deployment.ledger.plans.list(job):
        if job is None and is_judge(registered.job):
            continue  # it belongs to a check of the version that it judged, whose verdict names it
        progress = deployment.ledger.progress.of(registered.job_version)
        shards = _shards(registered, progress)
        listed.append(
            {
                "job": registered.job,
                "version": registered.job_version,
                "note": _note(registered, current.get(registered.job), swept),
                "published": current.get(registered.job) == registered.job_version,
                "base": registered.base_version,
                "records": registered.records,
                "results": progress.results,
                "dead_letters": progress.dead_letters,
                "shards": sum(shards.values()),
                "shards_completed": shards["completed"],
                "pinned_at": datetime.fromtimestamp(registered.pinned_at, UTC).isoformat(timespec="seconds"),
            }
        )
    return listed


def _note(registered: RegisteredVersion, published: str | None, swept: set[str]) -> str:
    states = {
        "published": published == registered.job_version,
        "swept": registered.job_version in swept,
        "retired": registered.retired,
        "cancelled": registered.cancelled,
    }
    state = next((name for name, holds in states.items() if holds), None)
    changes = None if registered.base_version is None else f"changes to {registered.base_version}"
    return ", ".join(filter(None, [state, changes]))


def _shards(registered: RegisteredVersion, progress: Progress) -> dict[str, int]:
    """Shards by state. Before planning there is no shard table yet: all are pending."""
    counts = dict(progress.shards)
    return counts if any(counts.values()) else {**counts, "pending": registered.shards}


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
