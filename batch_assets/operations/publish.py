"""Publishing and rolling back: one pointer moves, and what readers open follows (invariant I3)."""

from __future__ import annotations

import fcntl
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from batch_assets.core.history import standing_versions
from batch_assets.core.verdicts import Verdict, refusals
from batch_assets.errors import GateError, StoreError
from batch_assets.operations.deployment import Deployment
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.publications import Publication
from batch_assets.storage.warehouse import PublishedFiles, rebuild_catalog


@dataclass(frozen=True, kw_only=True)
class Published:
    """The pointer after a publication or rollback."""

    job: str
    job_version: str
    previous: str | None
    changed: bool  # False: it was published already


def content_digest(deployment: Deployment, job_version: str) -> str:
    """A digest over everything the version holds: its sealed files and its dead letters.

    Verdicts speak of one content; when a shard is added or replaced, they no longer count.
    """
    total = hashlib.sha256()
    for shard in deployment.ledger.progress.shards(job_version):
        line = f"{shard.shard} {shard.state} {shard.sealed_sha256} {shard.results} {shard.dead_letters}\n"
        total.update(line.encode())
    return total.hexdigest()


def current_verdicts(deployment: Deployment, job_version: str) -> list[Verdict]:
    """The verdicts that hold for the version as it is now."""
    return deployment.ledger.publications.verdicts_of(job_version, content_digest(deployment, job_version))


def publish(deployment: Deployment, registered: RegisteredVersion) -> Published:
    """Point readers at a version, if its checks allow it.

    Raises GateError with the reasons, or PublicationConflict when somebody else published meanwhile;
    in both cases readers go on seeing what they saw.
    """
    job_version = registered.job_version
    previous = deployment.ledger.publications.current(registered.job)
    verdicts = current_verdicts(deployment, job_version)
    reasons = refusals(verdicts, deployment.job(registered.job).required_checks)
    if reasons:
        raise GateError(
            f"{job_version} was not published; {registered.job} still shows {previous or 'nothing'}. "
            f"Reasons: {'; '.join(reasons)}. Run `batch-assets check {job_version}` after mending the cause.",
            reasons=reasons,
        )
    if previous == job_version:
        refresh_catalog(deployment)
        return Published(job=registered.job, job_version=job_version, previous=previous, changed=False)
    _move(deployment, registered.job, "publish", previous, job_version, verdicts)
    return Published(job=registered.job, job_version=job_version, previous=previous, changed=True)


def rollback(deployment: Deployment, job: str, to: str | None = None) -> Published:
    """Point readers back at the version before, or at an earlier published one.

    Raises GateError when there is none: what was never published does not get around the gate.
    """
    publications = deployment.ledger.publications
    moves = [(move.kind, move.to_version) for move in reversed(publications.history(job))]
    current = publications.current(job)
    if current is None:
        raise GateError(f"{job} has nothing published, so there is nothing to roll back.")
    standing = standing_versions(moves)
    if to is None and len(standing) < 2:
        raise GateError(f"{job} shows {current}, the first version published; there is none before it to go back to.")
    target = to or standing[-2]
    if target not in {version for _, version in moves}:
        raise GateError(
            f"{target} was never published, so it is nothing to roll back to; `batch-assets publish {target}` "
            "takes it through the checks."
        )
    if target == current:
        return Published(job=job, job_version=target, previous=current, changed=False)
    _move(deployment, job, "rollback", current, target, ())
    return Published(job=job, job_version=target, previous=current, changed=True)


def refresh_catalog(deployment: Deployment) -> None:
    """Derive the warehouse catalog from the ledger's pointers.

    Serialized by a file lock: of two publishers the later one must not put an older state in place.
    """
    with _catalog_lock(deployment):
        publications = deployment.ledger.publications
        published = [
            PublishedFiles(job=job, job_version=job_version, files=list(sealed_files(deployment, job_version)))
            for job, job_version in publications.all_current().items()
        ]
        rebuild_catalog(deployment.settings.warehouse, deployment.objects, published, publications.history())


def sealed_files(deployment: Deployment, job_version: str) -> Iterator[dict[str, object]]:
    """Key, digest, size and row count of the version's sealed files, in shard order."""
    for shard in deployment.ledger.progress.shards(job_version, state="completed"):
        yield {
            "key": shard.sealed_key,
            "sha256": shard.sealed_sha256,
            "bytes": shard.sealed_bytes,
            "rows": shard.results,
        }


def _move(
    deployment: Deployment, job: str, kind: str, previous: str | None, target: str, verdicts: Sequence[Verdict]
) -> None:
    missing = [
        file["key"] for file in sealed_files(deployment, target) if not deployment.objects.exists(str(file["key"]))
    ]
    if missing:
        raise StoreError(
            f"{len(missing)} files of {target} are missing, {missing[0]} first. Nothing was changed; restore them "
            "from a backup."
        )
    deployment.ledger.publications.move(
        Publication(
            publication_id=uuid.uuid4().hex,
            job=job,
            kind="rollback" if kind == "rollback" else "publish",
            from_version=previous,
            to_version=target,
            who=deployment.settings.actor,
            verdicts={verdict.check: verdict.passed for verdict in verdicts},
        )
    )
    refresh_catalog(deployment)


@contextmanager
def _catalog_lock(deployment: Deployment) -> Iterator[None]:
    with (deployment.settings.root / "warehouse.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
