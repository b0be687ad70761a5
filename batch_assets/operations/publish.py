"""Publishing and rolling back: one pointer moves, and what readers open follows (invariant I3)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import stamina

from batch_assets.core.history import standing_versions
from batch_assets.core.verdicts import CHECKS, Verdict, refusals
from batch_assets.errors import GateError, StoreError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.merge import merge
from batch_assets.operations.whole import published_files
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.publications import Publication
from batch_assets.storage.warehouse import Catalog, PublishedFiles, write_pointer_object

MOVE_ATTEMPTS = 4
_log = logging.getLogger(__name__)


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


def basis_digests(job: Job, baseline: str | None) -> dict[str, str]:
    """Per check, a digest over the standard that it judges by: its thresholds, the golden labels, and
    for drift the published version that it compares with."""
    gate = job.spec.gate.model_dump(mode="json")
    standards = {name: {"gate": gate.get(name), "fields": [job.category_field, job.evaluated_field]} for name in CHECKS}
    standards["evaluation"]["golden"] = job.golden()
    standards["drift"]["baseline"] = baseline
    return {
        name: hashlib.sha256(json.dumps(standard, sort_keys=True, default=str).encode()).hexdigest()
        for name, standard in standards.items()
    }


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
    if previous == job_version:
        refresh_catalog(deployment)
        return Published(job=registered.job, job_version=job_version, previous=previous, changed=False)
    _refuse_other_base(registered, previous)
    job = deployment.job(registered.job)
    content, basis = content_digest(deployment, job_version), basis_digests(job, previous)
    verdicts = deployment.ledger.publications.verdicts_of(job_version, content, basis)
    reasons = refusals(verdicts, job.required_checks)
    if reasons:
        raise GateError(
            f"{job_version} was not published; {registered.job} still shows {previous or 'nothing'}. "
            f"Reasons: {'; '.join(reasons)}. Run `batch-assets check {job_version}`, after mending the cause if there is one.",
            reasons=reasons,
        )
    if registered.base_version is not None:
        merge(deployment, registered)
    _verify_files(deployment, job_version)
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
    with _catalog_lock(deployment), Catalog(deployment.settings.warehouse, deployment.objects) as catalog:
        for job, job_version in deployment.ledger.publications.all_current().items():
            _add_if_readable(deployment, catalog, job, job_version)
        catalog.put_in_place(deployment.ledger.publications.history())


def _add_if_readable(deployment: Deployment, catalog: Catalog, job: str, job_version: str) -> None:
    """One job whose files are damaged must not keep the others from being published."""
    published = _published_files(deployment, job, job_version)
    try:
        catalog.add(published)
    except StoreError as error:
        _log.warning("published.%s is left out of the catalog: %s", job, error)
        return
    write_pointer_object(deployment.objects, published)


def _published_files(deployment: Deployment, job: str, job_version: str) -> PublishedFiles:
    files = [asdict(file) for file in published_files(deployment, job_version)]
    return PublishedFiles(job=job, job_version=job_version, files=files)


def _refuse_other_base(registered: RegisteredVersion, published: str | None) -> None:
    """Changes are changes to one published version, and nothing else."""
    if registered.base_version not in (None, published):
        raise GateError(
            f"{registered.job_version} holds changes to {registered.base_version}, but {registered.job} shows "
            f"{published or 'nothing'} now. Nothing was changed. Pin the changes again, on what is published now: "
            f"`batch-assets pin {registered.job} --changes SNAPSHOT`."
        )


def _verify_files(deployment: Deployment, job_version: str) -> None:
    """The files are still those that were judged. Raises StoreError naming the first that is not."""
    for file in published_files(deployment, job_version):
        if not deployment.objects.exists(file.key) or deployment.objects.sha256(file.key) != file.sha256:
            raise StoreError(
                f"{deployment.objects.uri(file.key)} is missing or not the file that was sealed. {job_version} was not "
                "published; restore the file from a backup."
            )


def _move(
    deployment: Deployment, job: str, kind: str, previous: str | None, target: str, verdicts: Sequence[Verdict]
) -> None:
    """Build what readers will open, move the pointer, put it in place: a failure leaves all as it was."""
    publication = Publication(
        publication_id=uuid.uuid4().hex,
        job=job,
        kind="rollback" if kind == "rollback" else "publish",
        from_version=previous,
        to_version=target,
        who=deployment.settings.actor,
        verdicts={verdict.check: verdict.passed for verdict in verdicts},
    )
    publications = deployment.ledger.publications
    with _catalog_lock(deployment), Catalog(deployment.settings.warehouse, deployment.objects) as catalog:
        published = _published_files(deployment, job, target)
        catalog.add(published)
        for other, job_version in publications.all_current().items():
            if other != job:
                _add_if_readable(deployment, catalog, other, job_version)
        # Sent again when its answer was lost: the publication's id makes the second time a no-op.
        for attempt in stamina.retry_context(on=StoreError, attempts=MOVE_ATTEMPTS, wait_max=5.0):
            with attempt:
                publications.move(publication)
        catalog.put_in_place(publications.history())
        write_pointer_object(deployment.objects, published)


@contextmanager
def _catalog_lock(deployment: Deployment) -> Iterator[None]:
    with (deployment.settings.root / "warehouse.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
