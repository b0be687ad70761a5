"""Nightly batches: which of them is next, and pinning it.

A folder holds one entry a night: a data file with the changed records, or a folder with `changes.*`
(a file or a folder) and `removed.*`. Entries are taken in the order of their names, so names begin with
the date. A batch counts as taken once a version made from it was published; one that fails its checks
is tried again, and nothing later overtakes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_assets.errors import GateError, SpecError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.pin import Pinned
from batch_assets.operations.pin_changes import pin_changes

_UNFINISHED = (".tmp", ".part", ".crdownload")  # names under which programs write what they rename later


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What changed in one night."""

    name: str
    changes: Path | None
    removed: Path | None


def pending_batches(deployment: Deployment, job: Job) -> list[Batch]:
    """The batches that were not published yet, the next one first.

    Raises GateError when the last move of the pointer was a rollback: what comes next is for a person to
    decide, since the batch that was taken back is not in what readers see.
    """
    history = deployment.ledger.publications.history(job.name)
    if history and history[0].kind == "rollback":
        raise GateError(
            f"{job.name} was rolled back to {history[0].to_version} by {history[0].who} at {history[0].at}; the nightly "
            "round waits, so that it does not publish again what was taken back. Publish what is to stand: the version "
            f"that was taken back (`batch-assets publish {history[0].from_version}`), other changes, or a backfill."
        )
    made_from = {one.job_version: one.batch for one in deployment.ledger.plans.list(job.name)}
    taken = [name for move in history if (name := made_from.get(move.to_version)) is not None]
    last = max(taken, default="")
    return [batch for batch in _batches(job) if batch.name > last]


def pin_batch(deployment: Deployment, job: Job, batch: Batch) -> Pinned:
    """The incremental version of a batch. Raises as `pin_changes` does."""
    return pin_changes(deployment, job, batch.changes, removed=batch.removed, batch=batch.name)


def _batches(job: Job) -> Iterator[Batch]:
    nightly = job.spec.nightly
    if nightly is None:
        raise SpecError(
            f"{job.folder}: the job has no nightly round. Add to defs.yaml under attributes: `nightly: {{batches: FOLDER}}`."
        )
    folder = job.folder / Path(nightly.batches).expanduser()
    if not folder.is_dir():
        raise SpecError(
            f"{job.folder}: key 'nightly.batches': found {nightly.batches!r}, but there is no folder {folder}."
        )
    for entry in sorted(folder.iterdir(), key=lambda path: path.name):
        if entry.name.startswith((".", "_")) or entry.suffix in _UNFINISHED:
            continue
        if entry.is_dir():
            yield _from_folder(entry)
        else:
            yield Batch(name=entry.name, changes=entry, removed=None)


def _from_folder(folder: Path) -> Batch:
    parts = {path.name.partition(".")[0]: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    known = {name: parts.pop(name, None) for name in ("changes", "removed")}
    if parts or not any(known.values()):
        found = ", ".join(path.name for path in sorted(folder.iterdir())) or "nothing"
        raise SpecError(
            f"{folder} is no nightly batch: it must hold `changes` (a data file or a folder of them) or `removed` (a file "
            f"of ids), or both, and nothing else; found {found}."
        )
    return Batch(name=folder.name, changes=known["changes"], removed=known["removed"])
