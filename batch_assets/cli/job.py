"""Commands that make and run versions: pin, plan, run, work."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from batch_assets.cli import render
from batch_assets.cli.common import JsonFlag, VersionArgument, deployment
from batch_assets.cli.progress import run_with_progress
from batch_assets.core.version import JobVersion
from batch_assets.errors import IncompleteError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.pin import Pinned, changed_since, pin
from batch_assets.operations.pin_changes import pin_changes
from batch_assets.operations.plan import plan
from batch_assets.operations.status import status
from batch_assets.operations.work import work
from batch_assets.storage.plans import RegisteredVersion

DRAINED = 75  # EX_TEMPFAIL: nothing is wrong, run it again


def pin_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="the job's name, as in its defs.yaml")],
    changes: Annotated[
        Path | None,
        typer.Option(
            "--changes", metavar="SNAPSHOT", help="records changed or added since the published version: file or folder"
        ),
    ] = None,
    removed: Annotated[
        Path | None,
        typer.Option("--removed", metavar="IDS", help="ids to remove: Parquet, CSV, JSONL, or text with one id a line"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Freeze a job folder into a version: snapshot, weights, prompt, decoding and output schema.

    With --changes or --removed the version is incremental: it holds what has changed since the published
    version, under the same recipe, and publishing merges the two.
    """
    here = deployment()
    if changes is None and removed is None:
        pinned = pin(here, here.job(job))
    else:
        pinned = pin_changes(here, here.job(job), _absolute(changes), removed=_absolute(removed))
    if as_json:
        render.print_json(pinned_values(pinned))
    else:
        print_pinned(pinned)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


def pinned_values(pinned: Pinned) -> dict[str, Any]:
    version = pinned.version
    return {
        "job": version.job,
        "version": pinned.job_version,
        "is_new": pinned.is_new,
        "records": version.records,
        "shards": version.shards,
        "shard_size": version.shard_size,
        "model_digest": version.model.digest,
        "base": version.changes.base if version.changes is not None else None,
        "removed": _removed(version),
        "notes": list(pinned.notes),
    }


def _removed(version: JobVersion) -> int:
    removed = version.changes.removed if version.changes is not None else None
    return removed.rows if removed is not None else 0


def print_pinned(pinned: Pinned) -> None:
    version = pinned.version
    shape = f"{version.records:,} records in {version.shards:,} shards"
    if version.changes is not None:
        shape = f"{shape} and {_removed(version):,} removals, changes to {version.changes.base}"
    if pinned.is_new:
        render.say(f"Pinned {pinned.job_version}: {shape}, model {version.model.name} ({version.model.digest[:12]})")
    else:
        render.say(f"{pinned.job_version} is pinned already and nothing in it has changed: {shape}")
    for note in pinned.notes:
        render.say(f"Note: {note}.")


def plan_command(version: VersionArgument, as_json: JsonFlag = False) -> None:
    """Check the record ids, give up what can never be answered, write the shard table."""
    here = deployment()
    registered = here.resolve(version)
    planned = plan(here, registered)
    if as_json:
        render.print_json({"job": registered.job, "version": registered.job_version, **asdict(planned)})
        return
    done = "Planned" if planned.is_new else "Planned already:"
    render.say(
        f"{done} {registered.job_version}: {planned.records:,} records in {planned.shards:,} shards, "
        f"{planned.dead_letters:,} dead letters known in advance"
    )


def run_command(version: VersionArgument, as_json: JsonFlag = False) -> None:
    """Run a version through Dagster on this machine until every shard is completed."""
    if as_json:
        render.talk_on_stderr()
    here = deployment()
    registered = here.resolve(version)
    if version == registered.job:
        _note_changes(here, registered)
    run(here, registered)
    if as_json:
        render.print_json(status(here, registered))


def _note_changes(here: Deployment, registered: RegisteredVersion) -> None:
    """Asked for a job's newest version, people may mean the folder as it is now."""
    changed = changed_since(here.job(registered.job), here.version(registered))
    if changed:
        render.say(
            f"Note: {', '.join(changed)} changed since {registered.job_version} was pinned, and does not enter this run. "
            f"`batch-assets pin {registered.job}` makes a new version."
        )


def run(here: Deployment, registered: RegisteredVersion) -> bool:
    """Plan and run a version; False when there was nothing left to compute.

    Raises IncompleteError, with what is missing, when the run ended without finishing.
    """
    plan(here, registered)
    registered = here.ledger.plans.get(registered.job_version)
    before = status(here, registered)
    if before["shards"]["completed"] == registered.shards:
        render.say(
            f"{registered.job_version} is complete already: {before['results']:,} results and "
            f"{before['dead_letters']:,} dead letters for {registered.records:,} records. Nothing is recomputed."
        )
        return False
    problem = run_with_progress(here, registered)
    open_shards = registered.shards - status(here, registered)["shards"]["completed"]
    if problem is not None or open_shards:
        raise IncompleteError(
            f"{registered.job_version} is not complete: {open_shards:,} of {registered.shards:,} shards are open. "
            f"What is stored stays; run it again to finish the rest. Reason: {problem or 'the run was stopped.'}"
        )
    return True


def work_command(
    version: VersionArgument,
    as_json: JsonFlag = False,
) -> None:
    """Work on a version in this process, without Dagster, until no shard is left.

    Any number of workers may run at once. SIGTERM and Ctrl-C make it store what is in flight, hand
    back its shards and exit with status 75.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())  # before anything else: a notice may come at any time
    here = deployment()
    registered = here.resolve(version)
    plan(here, registered)
    registered = here.ledger.plans.get(registered.job_version)
    report = work(here, registered, should_stop=stop.is_set)
    if as_json:
        render.print_json(asdict(report))
    elif report.engine is None:
        render.say(f"{registered.job_version} has no shard left to work on; no engine was started.")
    else:
        render.say(
            f"{'Handed back' if report.drained else 'Done'}: {report.shards_completed:,} shards completed, "
            f"{report.results:,} results, {report.dead_letters:,} dead letters, "
            f"{report.duplicates_discarded:,} duplicates discarded, {report.engine_restarts:,} engine restarts"
        )
    if here.ledger.plans.get(registered.job_version).cancelled and not as_json:
        render.say(f"{registered.job_version} was cancelled; what was stored stays.")
    waiting = here.ledger.progress.of(registered.job_version).shards["needs_operator"]
    if waiting and not as_json:
        version_id = registered.job_version
        render.say(
            f"{waiting:,} shards wait for an operator: `batch-assets shards {version_id} --state needs_operator` says why, "
            f"`batch-assets requeue {version_id} SHARD` hands them back."
        )
    if report.drained:
        raise typer.Exit(DRAINED)
