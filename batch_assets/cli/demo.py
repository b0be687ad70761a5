"""The whole path of one job, said aloud: pin, plan, run, check, publish."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from batch_assets.assets.launch import launch_gate
from batch_assets.cli import render
from batch_assets.cli.common import deployment
from batch_assets.cli.job import print_pinned, run
from batch_assets.core.verdicts import Verdict, refusals
from batch_assets.errors import GateError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.export import rows_of
from batch_assets.operations.pin import pin
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import current_verdicts
from batch_assets.operations.status import status
from batch_assets.operations.whole import sealed_files
from batch_assets.storage.plans import RegisteredVersion

SAMPLE_ROWS = 5
CELL_CHARS = 36


def demo(
    job: Annotated[str, typer.Argument(metavar="JOB", help="the job to take all the way")] = "support_tickets",
) -> None:
    """Take a job from its folder to a published table, and say what is happening."""
    here = deployment()
    step(1, "pin: freeze the job folder into a version")
    pinned = pin(here, here.job(job))
    print_pinned(pinned)
    registered = here.ledger.plans.get(pinned.job_version)
    step(2, "plan: check the record ids, write the shard table")
    planned = plan(here, registered)
    render.say(
        f"{'Planned' if planned.is_new else 'Planned already'}: {planned.records:,} records in {planned.shards:,} shards, "
        f"{planned.dead_letters:,} dead letters known in advance"
    )
    step(3, "run: answer every record, shard by shard, through Dagster")
    run(here, registered)
    step(4, "check and publish: judge the version, then switch the pointer")
    refused = gate(here, registered)
    step(5, "what there is now")
    summary(here, registered)
    if refused:
        raise typer.Exit(1)


def step(number: int, text: str) -> None:
    render.say("")
    render.say(f"[{number}/5] {text}")


def gate(here: Deployment, registered: RegisteredVersion) -> bool:
    """Check and publish in one Dagster run, unless both are done; True when it was refused."""
    published = here.ledger.publications.current(registered.job)
    verdicts = current_verdicts(here, registered.job_version)
    required = here.job(registered.job).required_checks
    if published == registered.job_version and not refusals(verdicts, required):
        render.say(f"{registered.job_version} has passed its checks and is published already. Nothing is recomputed.")
        return False
    try:
        launch_gate(here, registered)
    except GateError as error:
        render.say(str(error))
        return True
    render.say(f"{registered.job} now shows {registered.job_version} (before: {published or 'nothing'}).")
    return False


def summary(here: Deployment, registered: RegisteredVersion) -> None:
    """Counts, verdicts, the pointer, sample rows, and where to look next."""
    state = status(here, registered)
    verdicts = current_verdicts(here, registered.job_version)
    prefix = state["prefix_hit_rate"]
    rows: list[tuple[str, object]] = [
        ("version", registered.job_version),
        ("records", render.count(state["records"])),
        ("results", render.count(state["results"])),
        ("dead letters", f"{render.count(state['dead_letters'])} ({render.reasons(state['dead_letters_by_reason'])})"),
        ("records/s", render.count(state["records_per_s"], 2)),
        ("prefix cache", "-" if prefix is None else f"{prefix:.0%} of prompt tokens"),
        ("published", state["published"] or "nothing"),
    ]
    render.table((registered.job, ""), rows)
    render.say("")
    render.verdict_table(_in_order(verdicts, here.job(registered.job).required_checks))
    render.say("")
    sample(here, registered.job_version)
    render.say("")
    render.say("Open the UI with: make ui")


def sample(here: Deployment, job_version: str) -> None:
    """The first rows of the version, cut to fit."""
    with rows_of(here, job_version, sealed_files(here, job_version)) as connection:
        found = connection.execute(f"SELECT * EXCLUDE (_job_version, _stored_at) FROM results LIMIT {SAMPLE_ROWS}")
        names = [column[0] for column in found.description or ()]
        rows = [[_cell(value) for value in row] for row in found.fetchall()]
    shown = [index for index, name in enumerate(names) if not name.startswith("_")]
    render.table([names[index] for index in shown], [[row[index] for index in shown] for row in rows], one_line=True)


def _cell(value: Any) -> str:
    """A value on one line; nested ones as JSON."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    elif isinstance(value, list | dict):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARS else f"{text[: CELL_CHARS - 1]}…"


def _in_order(verdicts: list[Verdict], names: tuple[str, ...]) -> list[Verdict]:
    return sorted(verdicts, key=lambda verdict: names.index(verdict.check) if verdict.check in names else len(names))
