"""Publishing and rolling back: one pointer moves, and what readers open follows (invariant I3)."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import stamina

from batch_assets.core.history import standing_versions
from batch_assets.core.quoting import printable
from batch_assets.core.verdicts import CHECKS, Verdict, overridable, refusals
from batch_assets.errors import GateError, InputError, PublicationConflict, StoreError
from batch_assets.operations.catalog import add_if_readable, catalog_lock, files_of, mend_catalog
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.intervene import refuse_judge
from batch_assets.operations.jobs import Job
from batch_assets.operations.merge import merge
from batch_assets.operations.whole import content_digest, published_files, verify_files
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.pointer_object import write_pointer_object
from batch_assets.storage.publications import Publication, refuse_other_use
from batch_assets.storage.warehouse import Catalog

MOVE_ATTEMPTS = 4
REASON_CHARS_MAX = 1000
_PUBLISH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a publication or rollback has done."""

    job: str
    job_version: str
    previous: str | None
    changed: bool  # False: readers were there already, or this publish id has moved the pointer before
    shows: str | None  # the version that readers see now
    publication_id: str | None = None
    happened_at: str | None = None  # ISO 8601: a move with this publish id was made then, and not repeated now
    override: str | None = None  # the reason given for publishing although checks had failed
    overrode: tuple[str, ...] = ()  # these checks

    @property
    def sentence(self) -> str:
        """What has happened, for people."""
        if self.happened_at is not None:
            return (
                f"The publish id {self.publication_id} has taken {self.job} to {self.job_version} before, on "
                f"{self.happened_at}; nothing was moved now. {self.job} shows {self.shows or 'nothing'}."
            )
        if not self.changed:
            return f"{self.job} shows {self.job_version} already; nothing to do."
        moved = f"{self.job} now shows {self.job_version} (before: {self.previous or 'nothing'})."
        if self.override is None:
            return moved
        return f"{moved} Overridden: {', '.join(self.overrode)}; the reason is in the history."


def basis_digests(job: Job, baseline: str | None) -> dict[str, str]:
    """Per check, a digest over the standard that it judges by: its thresholds, the golden labels,
    graders and judge, and for drift and evaluation the published version that they compare with."""
    gate = job.spec.gate.model_dump(mode="json")
    standards = {name: {"gate": gate.get(name), "fields": [job.category_field, job.evaluated_field]} for name in CHECKS}
    standards["evaluation"] |= {"golden": job.golden(), "baseline": baseline, "suite": job.suite.standard()}
    standards["drift"]["baseline"] = baseline
    return {
        name: hashlib.sha256(json.dumps(standard, sort_keys=True, default=str).encode()).hexdigest()
        for name, standard in standards.items()
    }


def current_verdicts(deployment: Deployment, job_version: str) -> list[Verdict]:
    """The verdicts that hold for the version as it is now."""
    return deployment.ledger.publications.verdicts_of(job_version, content_digest(deployment, job_version))


def verdicts_that_count(deployment: Deployment, job: Job, job_version: str) -> list[Verdict]:
    """The verdicts that publishing this version would go by.

    They speak of exactly its content, by the gate as it is now, against the version that is published
    now. `current_verdicts` are more: given on its content, by whatever gate and baseline there was.
    """
    content = content_digest(deployment, job_version)
    basis = basis_digests(job, deployment.ledger.publications.current(job.name))
    return deployment.ledger.publications.verdicts_of(job_version, content, basis)


def publish(
    deployment: Deployment,
    registered: RegisteredVersion,
    *,
    override: str | None = None,
    publish_id: str | None = None,
) -> Published:
    """Point readers at a version, if its checks allow it.

    `override` is a person's reason to publish although checks have failed; it is kept in the history,
    with the checks that it set aside. A second call with the same `publish_id` moves nothing and says
    what the first one did. Everything whose time depends on the number of rows is done before the lock
    and the transaction: merging changes, and comparing all files with their digests.

    Raises GateError with the reasons, or PublicationConflict when somebody else published meanwhile;
    in both cases readers go on seeing what they saw.
    """
    refuse_judge(registered)
    publications, job_version = deployment.ledger.publications, registered.job_version
    reason = _reason(override)
    wanted = _wanted(deployment, registered.job, "publish", job_version, publish_id)
    if publish_id is not None and (known := _happened(deployment, wanted)) is not None:
        return known
    current = publications.pointer(registered.job)
    previous = None if current is None else current.to_version
    if previous == job_version:
        return _nothing_to_do(deployment, registered.job, job_version)
    publications.refuse_swept(job_version)
    _refuse_other_base(registered, previous)
    reopened = publications.reopenings(job_version)  # before looking: a change from here on is noticed
    job = deployment.job(registered.job)
    verdicts = verdicts_that_count(deployment, job, job_version)
    reasons = refusals(verdicts, job.required_checks, override=reason is not None)
    if reasons:
        raise GateError(
            f"{job_version} was not published; {registered.job} still shows {previous or 'nothing'}. "
            f"Reasons: {'; '.join(reasons)}. Run `batch-assets check {job_version}`, after mending the cause if there is one."
            f"{_how_to_override(verdicts)}",
            reasons=reasons,
        )
    if registered.base_version is not None:
        merge(deployment, registered)
    verify_files(deployment, published_files(deployment, job_version))
    overrode = () if reason is None else overridable(verdicts)
    publication = replace(
        wanted,
        from_version=previous,
        replaces=None if current is None else current.publication_id,
        verdicts={verdict.check: verdict.passed for verdict in verdicts},
        reopened=reopened,
        override=reason if overrode else None,
        overrode=overrode,
    )
    try:
        return _move(deployment, publication)
    except PublicationConflict as conflict:
        if conflict.found != job_version:
            raise
        return _nothing_to_do(deployment, registered.job, job_version)  # another publisher of the same version


def rollback(deployment: Deployment, job: str, to: str | None = None, *, publish_id: str | None = None) -> Published:
    """Point readers back at the version before, or at an earlier published one.

    Raises GateError when there is none, or its files were swept: what was never published does not get
    around the gate. Without a publish id, a second call goes back another step.
    """
    publications = deployment.ledger.publications
    if publish_id is not None and (known := publications.find(publish_id)) is not None:
        refuse_other_use(known, replace(known, job=job, kind="rollback", to_version=to or known.to_version))
        return _told(deployment, known)
    moves = [(move.kind, move.to_version) for move in reversed(publications.history(job))]
    current = publications.pointer(job)
    if current is None:
        raise GateError(f"{job} has nothing published, so there is nothing to roll back.")
    standing = standing_versions(moves)
    if to is None and len(standing) < 2:
        raise GateError(
            f"{job} shows {current.to_version}, the first version published; there is none before it to go back to."
        )
    target = to or standing[-2]
    if target not in {version for _, version in moves}:
        if target not in {one.job_version for one in deployment.ledger.plans.list(job)}:
            shown = ", ".join(dict.fromkeys(version for _, version in reversed(moves)))
            raise GateError(f"{job} has no version {target}. Those that were published, the newest first: {shown}.")
        raise GateError(
            f"{target} was never published, so it is nothing to roll back to; `batch-assets publish {target}` "
            "takes it through the checks."
        )
    if target == current.to_version:
        return _nothing_to_do(deployment, job, target)
    publications.refuse_swept(target)
    wanted = _wanted(deployment, job, "rollback", target, publish_id)
    return _move(deployment, replace(wanted, from_version=current.to_version, replaces=current.publication_id))


def _how_to_override(verdicts: Sequence[Verdict]) -> str:
    if not overridable(verdicts):
        return ""
    return f' To publish all the same, on your word: --override "reason" ({", ".join(overridable(verdicts))} only).'


def _reason(override: str | None) -> str | None:
    """The reason of an override as it is kept. Raises InputError for one that says nothing."""
    if override is None:
        return None
    reason = " ".join(printable(override).split())
    if not reason:
        raise InputError("An override needs a reason: it stands in the history with your name. Nothing was published.")
    if len(reason) > REASON_CHARS_MAX:
        raise InputError(
            f"The override's reason is longer than {REASON_CHARS_MAX:,} characters. Nothing was published."
        )
    return reason


def _wanted(deployment: Deployment, job: str, kind: str, target: str, publish_id: str | None) -> Publication:
    if publish_id is not None and not _PUBLISH_ID.fullmatch(publish_id):
        raise InputError(
            "A publish id is made of at most 128 letters, digits and the signs . _ : - and begins with a letter or digit. "
            "Nothing was changed."
        )
    return Publication(
        publication_id=publish_id or uuid.uuid4().hex,
        job=job,
        kind="rollback" if kind == "rollback" else "publish",
        from_version=None,
        to_version=target,
        who=deployment.settings.actor,
        verdicts={},
    )


def _happened(deployment: Deployment, wanted: Publication) -> Published | None:
    """What a move with this id has done, if there was one. Raises InputError when it was another move."""
    known = deployment.ledger.publications.find(wanted.publication_id)
    return None if known is None else _told(deployment, refuse_other_use(known, wanted))


def _told(deployment: Deployment, known: Publication) -> Published:
    """A move that was made before, and what readers see now."""
    mend_catalog(deployment)  # whoever made it may have died before readers could see it
    return Published(
        job=known.job,
        job_version=known.to_version,
        previous=known.from_version,
        changed=False,
        shows=deployment.ledger.publications.current(known.job),
        publication_id=known.publication_id,
        happened_at=known.at,
        override=known.override,
        overrode=known.overrode,
    )


def _nothing_to_do(deployment: Deployment, job: str, job_version: str) -> Published:
    mend_catalog(deployment)
    return Published(job=job, job_version=job_version, previous=job_version, changed=False, shows=job_version)


def _refuse_other_base(registered: RegisteredVersion, published: str | None) -> None:
    """Changes are changes to one published version, and nothing else."""
    if registered.base_version not in (None, published):
        raise GateError(
            f"{registered.job_version} holds changes to {registered.base_version}, but {registered.job} shows "
            f"{published or 'nothing'} now. Nothing was changed. Pin the changes again, on what is published now: "
            f"`batch-assets pin {registered.job} --changes SNAPSHOT`."
        )


def _move(deployment: Deployment, publication: Publication) -> Published:
    """Build what readers will open, move the pointer, put it in place: a failure leaves all as it was.

    Nothing here reads rows: its time grows with the number of files and jobs only.
    """
    publications, job = deployment.ledger.publications, publication.job
    with catalog_lock(deployment), Catalog(deployment.settings.warehouse, deployment.objects) as catalog:
        published = files_of(deployment, publication)
        catalog.add(published)
        for other in publications.pointers().values():
            if other.job != job:
                add_if_readable(deployment, catalog, other)
        moved = _sent_until_answered(deployment, publication)
        standing = publications.pointer(job)
        # With an id that somebody else used meanwhile, ours may be an older state: that is for mend_catalog.
        if standing is not None and standing.publication_id == moved.publication_id:
            catalog.put_in_place(publications.history())
            write_pointer_object(deployment.objects, moved, published)
    if standing is None or standing.publication_id != moved.publication_id:
        return _told(deployment, moved)
    return Published(
        job=job,
        job_version=moved.to_version,
        previous=moved.from_version,
        changed=True,
        shows=moved.to_version,
        publication_id=moved.publication_id,
        override=moved.override,
        overrode=moved.overrode,
    )


def _sent_until_answered(deployment: Deployment, publication: Publication) -> Publication:
    """Sent again when its answer was lost: the publication's id makes the second time a no-op."""
    for attempt in stamina.retry_context(on=StoreError, attempts=MOVE_ATTEMPTS, wait_max=5.0):
        with attempt:
            return deployment.ledger.publications.move(publication)
    raise StoreError("The ledger database did not answer; try again.")  # the last attempt has raised its own
