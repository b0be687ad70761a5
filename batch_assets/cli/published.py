"""Commands around what is published: history, rebuild-catalog, sweep."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from batch_assets.cli import render
from batch_assets.cli.common import JsonFlag, deployment
from batch_assets.operations.catalog import mend_in_passing, refresh_catalog
from batch_assets.operations.history import history
from batch_assets.operations.sweep import Swept, sweep

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="a job that has versions here")]


def history_command(job: JobArgument, as_json: JsonFlag = False) -> None:
    """Every move of a job's pointer, the newest first: who, when, from, to, verdicts, override."""
    here = deployment()
    moves = history(here, here.known_job(job))
    mend_in_passing(here)
    if as_json:
        render.print_json(moves)
        return
    if not moves:
        render.say(f"{job} has nothing published yet.")
        return
    rows = []
    for move in moves:
        failed = [name for name, passed in move["verdicts"].items() if not passed]
        said = (
            f"failed: {', '.join(failed)}" if failed else f"{len(move['verdicts'])} passed" if move["verdicts"] else ""
        )
        override = render.override(move["override"]) if move["override"] else ""
        shown = f"{move['to']}{' (swept)' if move['swept'] else ''}"
        rows.append((move["at"][:19], move["kind"], move["from"] or "nothing", shown, move["who"], said, override))
    render.table(("when", "move", "from", "to", "who", "checks", "override"), rows)


def rebuild_catalog_command(as_json: JsonFlag = False) -> None:
    """Derive what readers open from the ledger anew: the DuckDB catalog and the JSON pointers."""
    here = deployment()
    done = refresh_catalog(here)
    if as_json:
        render.print_json(asdict(done))
    else:
        shown = ", ".join(f"{job} ({version})" for job, version in done.published.items()) or "nothing is published"
        render.say(f"{here.settings.warehouse} is new: {shown}.")
    for job, problem in done.left_out.items():
        render.warn(f"{job} is left out: {problem.rstrip('.')}")
    if done.left_out:
        raise typer.Exit(1)


def sweep_command(
    job: JobArgument,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", help="published versions to keep files of")] = None,
    grace_h: Annotated[
        float | None,
        typer.Option("--grace-h", metavar="HOURS", help="how long readers may have a replaced version open"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and change nothing")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove the files of versions that are published no more, and files that nothing names."""
    here = deployment()
    done = sweep(here, here.known_job(job), keep=keep, grace_h=grace_h, dry_run=dry_run)
    if as_json:
        render.print_json({**asdict(done), "bytes": done.bytes})
    else:
        _say(done)


def _say(done: Swept) -> None:
    rows: list[tuple[str, str, str, str]] = [
        (one.job_version, "goes" if done.dry_run else "gone", f"{one.files:,}", render.count(one.bytes))
        for one in done.versions
    ]
    if done.orphans:
        size = sum(one.size for one in done.orphans)
        rows.append(
            ("named by nothing", "go" if done.dry_run else "gone", f"{len(done.orphans):,}", render.count(size))
        )
    rows += [(version, f"stays: {reason}", "", "") for version, reason in done.kept.items()]
    if rows:
        render.table(("version", "", "files", "bytes"), rows)
    for note in done.notes:
        render.warn(note.rstrip("."))
    verb = "would be removed; nothing was changed" if done.dry_run else "removed"
    render.say(f"{render.count(done.bytes)} bytes {verb}.")
