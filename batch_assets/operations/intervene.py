"""What an operator does to a version: requeue shards, cancel it, retry dead letters, retire it."""

from __future__ import annotations

from dataclasses import dataclass

from batch_assets.core.judges import is_judge
from batch_assets.core.leases import SHARD_STATES
from batch_assets.core.outcomes import Reason
from batch_assets.errors import InputError, VersionError
from batch_assets.operations.deployment import Deployment
from batch_assets.storage.interventions import Retried
from batch_assets.storage.plans import RegisteredVersion


@dataclass(frozen=True, kw_only=True)
class Requeued:
    """What a requeue found: only shards that wait for an operator are moved."""

    handed_back: tuple[int, ...]
    left_alone: dict[int, str]  # shard -> its state


@dataclass(frozen=True, kw_only=True)
class Retired:
    """What is left of a retired version."""

    changed: bool
    forgotten: bool  # never published: it can be pinned again as if it had never been


def requeue(deployment: Deployment, registered: RegisteredVersion, shards: list[int]) -> Requeued:
    """Hand shards that need an operator back to the workers.

    Raises VersionError for shards that do not exist; nothing is changed then.
    """
    refuse_cancelled(registered)
    missing = [shard for shard in shards if not 0 <= shard < registered.shards]
    if missing:
        raise VersionError(
            f"{registered.job_version} has no shard {', '.join(map(str, missing))}; they are numbered from 0 to "
            f"{registered.shards - 1}. Nothing was changed."
        )
    found = deployment.ledger.interventions.requeue(registered.job_version, shards)
    handed_back = tuple(shard for shard, state in found.items() if state == "needs_operator")
    left = {shard: state for shard, state in found.items() if state != "needs_operator"}
    return Requeued(handed_back=handed_back, left_alone=left)


def cancel(deployment: Deployment, registered: RegisteredVersion) -> dict[str, int]:
    """Withdraw a version for good: its workers stop, what is completed stays.

    Returns its shards by state. Raises GateError when readers see the version.
    """
    return deployment.ledger.interventions.cancel(registered.job_version)


def retry_dead_letters(deployment: Deployment, registered: RegisteredVersion, reason: str) -> Retried:
    """Put a class of dead letters back to pending, each record with three fresh attempts.

    Raises InputError for a reason that does not exist, GateError when readers see the version.
    """
    check_reason(reason)
    return deployment.ledger.interventions.retry_dead_letters(
        registered.job_version, reason, who=deployment.settings.actor
    )


def retire(deployment: Deployment, registered: RegisteredVersion, *, forget: bool = False) -> Retired:
    """Drop the rows that a settled version has for each record; its sealed files stay.

    With `forget`, a version that was never published goes altogether, sealed files included, and its
    content can be pinned anew. Raises GateError while it is in use, or when what was published is to be
    forgotten.
    """
    ledger, job_version = deployment.ledger, registered.job_version
    changed = ledger.interventions.retire(job_version, forget=forget)
    if not forget:
        return Retired(changed=changed, forgotten=False)
    for shard in ledger.progress.shards(job_version, state="completed"):
        if shard.sealed_key is not None:
            deployment.objects.remove(shard.sealed_key)
    ledger.interventions.forget(job_version)
    return Retired(changed=changed, forgotten=True)


def check_reason(reason: str | None) -> None:
    """Raise InputError for a reason that dead letters do not have."""
    if reason is not None and reason not in list(Reason):
        raise InputError(f"{reason!r} is no reason of dead letters; there are {', '.join(Reason)}.")


def check_state(state: str | None) -> None:
    """Raise InputError for a state that shards do not have."""
    if state is not None and state not in SHARD_STATES:
        raise InputError(f"{state!r} is no state of a shard; there are {', '.join(SHARD_STATES)}.")


def refuse_retired(registered: RegisteredVersion) -> None:
    """Raise VersionError for a version whose rows are gone."""
    if registered.retired:
        raise VersionError(
            f"{registered.job_version} was retired: the ledger's rows of its records, dead letters among them, are gone. Its "
            "sealed files and what they were judged to be stand."
        )


def refuse_cancelled(registered: RegisteredVersion) -> None:
    """Raise VersionError for a version that is not worked on any more."""
    if registered.cancelled:
        raise VersionError(
            f"{registered.job_version} was cancelled, and a cancelled version is not taken up again. To run the same "
            f"content after all: `batch-assets retire {registered.job_version} --forget`, then pin the job again."
        )


def refuse_judge(registered: RegisteredVersion) -> None:
    """Raises VersionError for a judge's version: it is part of a check, and is not published."""
    if is_judge(registered.job):
        raise VersionError(
            f"{registered.job_version} holds a judge's scores, which are part of the evaluation check; it is neither checked "
            "nor published itself. Nothing was changed."
        )
