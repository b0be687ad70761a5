"""Retention: the files of versions that are published no more, and files that nothing names, are removed.

What goes is decided from what the ledger names, never by age alone: a file stays while the pointer, a
version that is kept, the base of unpublished changes, a running version or a merge under way can name
it. Everything is decided and marked first; the removal can be cut short anywhere, and the next sweep
goes on with it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batch_assets.core.spec import RetentionSpec
from batch_assets.errors import BatchAssetsError, InputError
from batch_assets.operations.catalog import mend_catalog
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import job_names
from batch_assets.operations.whole import merged_manifest
from batch_assets.storage.objects import StoredObject
from batch_assets.storage.retention import Decision, Known

_AT_ONCE = 50  # files removed in one transaction: on SQLite the workers wait for its end


@dataclass(frozen=True, kw_only=True)
class SweptVersion:
    """A version that was published once, whose files go."""

    job_version: str
    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What a sweep has removed, or would remove."""

    job: str
    dry_run: bool
    versions: tuple[SweptVersion, ...]
    orphans: tuple[StoredObject, ...]  # nothing names them, and they are older than the grace time
    kept: Mapping[str, str]  # published versions that stay, with the reason
    notes: tuple[str, ...]  # what was left alone, and why

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.versions) + sum(one.size for one in self.orphans)


@dataclass
class _Found:
    """Objects that are to go, by the version that their keys speak of."""

    of_swept: dict[str, list[StoredObject]] = field(default_factory=lambda: defaultdict(list))
    orphans: dict[str, list[StoredObject]] = field(default_factory=lambda: defaultdict(list))
    snapshots: list[StoredObject] = field(default_factory=list)
    registered: set[str] = field(default_factory=set)  # the versions whose snapshots were looked at
    notes: list[str] = field(default_factory=list)


def sweep(
    deployment: Deployment, job: str, *, keep: int | None = None, grace_h: float | None = None, dry_run: bool = False
) -> Swept:
    """Remove what no reader and no rollback within the last `keep` published versions needs.

    Without numbers, those of the job's `retention:` hold. A dry run changes nothing. Raises InputError
    for numbers that cannot be meant.
    """
    rule = _rule(deployment, job, keep, grace_h)
    if not dry_run:
        mend_catalog(deployment)  # what readers open must not name an older state than the ledger
    decision = deployment.ledger.retention.decide(
        job, keep=rule.keep, grace_s=rule.grace_h * 3600, who=deployment.settings.actor, dry_run=dry_run
    )
    found = _find(deployment, job, decision, rule.grace_h * 3600)
    if not dry_run:
        _remove(deployment, found)
    return Swept(
        job=job,
        dry_run=dry_run,
        versions=tuple(
            SweptVersion(job_version=version, files=len(files), bytes=sum(one.size for one in files))
            for version in decision.swept
            if (files := found.of_swept.get(version, []))
        ),
        orphans=(*(one for files in found.orphans.values() for one in files), *found.snapshots),
        kept=decision.kept,
        notes=tuple(found.notes),
    )


def _rule(deployment: Deployment, job: str, keep: int | None, grace_h: float | None) -> RetentionSpec:
    rule = deployment.job(job).spec.retention if job in job_names(deployment.settings) else RetentionSpec()
    keep = rule.keep if keep is None else keep
    grace_h = rule.grace_h if grace_h is None else grace_h
    if keep < 1 or not 0 <= grace_h < float("inf"):
        raise InputError(
            f"A sweep keeps at least 1 published version and waits at least 0 hours (found {keep} and {grace_h:g}). "
            "Nothing was removed."
        )
    return RetentionSpec(keep=keep, grace_h=grace_h)


def _find(deployment: Deployment, job: str, decision: Decision, grace_s: float) -> _Found:
    found = _Found()
    named = set(_named(deployment, job, set(decision.swept)))
    before_ns = int((time.time() - grace_s) * 1e9)
    known: dict[str, Known] = {}
    for one in _stored(deployment, job):
        version = one.key.split("/")[2]
        if one.key in named:
            continue
        if version in decision.swept:
            found.of_swept[version].append(one)
            continue
        if version not in known:
            known[version] = deployment.ledger.retention.known(version)
        if one.modified_ns < before_ns and _is_orphan(known[version], one.key):
            found.orphans[version].append(one)
    _find_snapshots(deployment, found, before_ns)
    return found


def _stored(deployment: Deployment, job: str) -> Iterator[StoredObject]:
    for folder in ("results", "merged"):
        for one in deployment.objects.list(f"{folder}/{job}/"):
            if one.key.count("/") >= 3:  # folder/job/version/…; anything else is not ours
                yield one


def _named(deployment: Deployment, job: str, swept: set[str]) -> Iterator[str]:
    """Every key that a version of the job names, other than the swept ones."""
    for registered in deployment.ledger.plans.list(job):
        if registered.job_version in swept:
            continue
        for shard in deployment.ledger.progress.shards(registered.job_version):
            if shard.sealed_key is not None:
                yield shard.sealed_key
        merged = deployment.ledger.file_sets.of(registered.job_version)
        if merged is not None:
            yield merged.manifest_key
            manifest = merged_manifest(deployment, registered.job_version)
            for file in [*manifest.results, *manifest.dead_letters] if manifest is not None else []:
                yield file.key


def _is_orphan(known: Known, key: str) -> bool:
    """The ledger does not name this file of a version, and nobody is there who could still make it."""
    if not known.is_registered:
        return True
    if known.can_seal or key in known.sealed:
        return False
    if key.startswith("merged/"):
        return not known.can_merge and (known.merged is None or not key.startswith(known.merged))
    return True


def _find_snapshots(deployment: Deployment, found: _Found, before_ns: int) -> None:
    """Converted snapshots and lists of removed ids may be shared; they go when no pinned version of any job names them."""
    stored = [
        one
        for folder in ("snapshots/", "removed/")
        for one in deployment.objects.list(folder)
        if one.modified_ns < before_ns
    ]
    if not stored:
        return
    named: set[str] = set()
    for registered in deployment.ledger.plans.list():
        found.registered.add(registered.job_version)
        try:
            version = deployment.version(registered)
        except BatchAssetsError as error:
            found.notes.append(f"no snapshot file was looked at: {error}")
            return
        removed = version.changes.removed if version.changes is not None else None
        pins = [*version.snapshot.sources, *version.snapshot.files, *([removed] if removed is not None else [])]
        named.update(pin.key for pin in pins)
        named.update(registered.moved_files.values())
    found.snapshots = [one for one in stored if one.key not in named]


def _remove(deployment: Deployment, found: _Found) -> None:
    """Each step asks the ledger again, in a transaction that lets nobody name a file meanwhile."""
    retention, objects = deployment.ledger.retention, deployment.objects
    for version, files in found.of_swept.items():
        for some in _batches(files):
            with retention.holding(version, ()) as known:
                for one in some if known.is_swept else []:
                    objects.remove(one.key)
    for version, files in found.orphans.items():
        removed = []
        for some in _batches(files):
            with retention.holding(version, [one.key for one in some]) as known:
                for one in some:
                    if _is_orphan(known, one.key):
                        objects.remove(one.key)
                        removed.append(one)
        found.orphans[version] = removed
    for some in _batches(found.snapshots):
        with retention.holding_all() as registered:
            if not registered <= found.registered:
                found.notes.append("snapshot files were left alone: versions were pinned meanwhile; sweep again")
                found.snapshots = []
                return
            for one in some:
                objects.remove(one.key)


def _batches(files: Sequence[StoredObject]) -> Iterator[Sequence[StoredObject]]:
    for first in range(0, len(files), _AT_ONCE):
        yield files[first : first + _AT_ONCE]
