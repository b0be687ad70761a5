"""Commands that only look: status, versions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from batch_assets.cli import render
from batch_assets.cli.common import JsonFlag, deployment
from batch_assets.operations.catalog import mend_in_passing
from batch_assets.operations.status import status, versions


def status_command(
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="a version, or a job for its newest; the newest of all if left out"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """How far a version is, how fast it goes, and when it will be done."""
    here = deployment()
    mend_in_passing(here)
    state = status(here, here.resolve(version))
    if as_json:
        render.print_json(state)
        return
    print_status(state)


def print_status(state: dict[str, Any]) -> None:
    """One version's state for people."""
    shards = ", ".join(f"{number:,} {name}" for name, number in state["shards"].items() if number)
    rows = [
        ("version", state["version"]),
        *([("changes to", state["base"])] if state["base"] is not None else []),
        ("published", state["published"] or "nothing yet"),
        *([("override", render.override(state["override"]))] if state["override"] else []),
        ("records", render.count(state["records"])),
        ("results", render.count(state["results"])),
        ("dead letters", _dead_letters(state)),
        ("pending", render.count(state["pending"])),
        ("shards", shards),
        ("records/s", render.count(state["records_per_s"], 2)),
        ("output tokens/s", render.count(state["tokens_per_s"], 1)),
        ("prefix cache", _percent(state["prefix_hit_rate"])),
        ("remaining", render.duration(state["eta_s"])),
        ("duplicates", f"{render.count(state['duplicates_discarded'])} discarded"),
        ("waste", _waste(state["waste"])),
        ("workers", ", ".join(state["workers"]) or "none"),
    ]
    render.table((state["job"], ""), rows)
    if state["shards"].get("needs_operator"):
        render.say(
            f"Shards wait for an operator: `batch-assets shards {state['version']} --state needs_operator` says why, "
            f"`batch-assets requeue {state['version']} SHARD` hands them back."
        )


def versions_command(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="only this job's versions")] = None,
    as_json: JsonFlag = False,
) -> None:
    """All versions, the newest first."""
    here = deployment()
    if job is not None:
        here.known_job(job)  # a name that is no job is an error, not an empty list
    listed = versions(here, job)
    if as_json:
        render.print_json(listed)
        return
    if not listed:
        render.say("No version is pinned here yet; `batch-assets pin JOB` makes one.")
        return
    render.table(
        ("version", "job", "records", "results", "dead letters", "shards", "pinned at", ""),
        [
            (
                one["version"],
                one["job"],
                render.count(one["records"]),
                render.count(one["results"]),
                render.count(one["dead_letters"]),
                f"{one['shards_completed']:,} of {one['shards']:,}",
                one["pinned_at"],
                one["note"],
            )
            for one in listed
        ],
    )


def _dead_letters(state: dict[str, Any]) -> str:
    reasons = "the rows are retired" if state["retired"] else render.reasons(state["dead_letters_by_reason"])
    return f"{render.count(state['dead_letters'])} ({reasons})"


def _waste(by_cause: dict[str, dict[str, int]]) -> str:
    return ", ".join(f"{total['records']:,} {cause}" for cause, total in by_cause.items()) or "none"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%} of prompt tokens"
