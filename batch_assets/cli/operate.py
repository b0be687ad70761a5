"""Commands for whoever is called when something is stuck: shards, requeue, cancel, dead-letters, retire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from batch_assets.cli import render
from batch_assets.cli.common import JsonFlag, VersionArgument, deployment
from batch_assets.errors import InputError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.intervene import (
    cancel,
    check_reason,
    check_state,
    refuse_retired,
    requeue,
    retire,
    retry_dead_letters,
)
from batch_assets.storage.plans import RegisteredVersion


def shards_command(
    version: VersionArgument,
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help="only shards in this state")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The shard table: who has which shard, and what stands in the way of the others."""
    check_state(state)
    here = deployment()
    registered = here.resolve(version)
    listed = here.ledger.progress.shards(registered.job_version, state=state)
    if as_json:
        render.print_json([asdict(shard) for shard in listed])
        return
    if not registered.planned:
        render.say(f"{registered.job_version} is not planned yet, so it has no shards.")
        return
    rows = [
        (one.shard, one.state, one.epoch, one.records, one.results, one.dead_letters, one.owner, one.trouble)
        for one in listed
    ]
    if not rows:
        render.say(f"{registered.job_version} has no shard that is {state}.")
        return
    render.table(("shard", "state", "epoch", "records", "results", "dead letters", "owner", "trouble"), rows)


def requeue_command(
    version: VersionArgument,
    shards: Annotated[list[int], typer.Argument(metavar="SHARD...", help="numbers of shards that need an operator")],
    as_json: JsonFlag = False,
) -> None:
    """Hand shards that need an operator back to the workers; others are left alone."""
    here = deployment()
    registered = here.resolve(version)
    done = requeue(here, registered, shards)
    if as_json:
        render.print_json({"version": registered.job_version, **asdict(done)})
        return
    if done.handed_back:
        render.say(
            f"Pending again: {render.numbers(done.handed_back)}. `batch-assets run {registered.job_version}` goes on."
        )
    for shard, state in done.left_alone.items():
        render.say(f"Shard {shard} is {state}; there is nothing to hand back.")


def cancel_command(version: VersionArgument, as_json: JsonFlag = False) -> None:
    """Withdraw a version for good. Its workers stop at once; completed shards and stored results stay."""
    here = deployment()
    registered = here.resolve(version)
    states = cancel(here, registered)
    if as_json:
        render.print_json({"version": registered.job_version, "shards": states})
    elif set(states) == {"completed"}:
        render.say(f"{registered.job_version} is complete; there was nothing to cancel.")
    else:
        shown = ", ".join(f"{number:,} {state}" for state, number in states.items()) or "it was not planned yet"
        render.say(f"{registered.job_version} is cancelled: {shown}.")


def retire_command(
    version: VersionArgument,
    forget: Annotated[
        bool, typer.Option("--forget", help="remove a version that was never published, with all its results")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Drop the ledger's row per record of a settled version; its sealed files stay, for rollback."""
    here = deployment()
    registered = here.resolve(version)
    done = retire(here, registered, forget=forget)
    if as_json:
        render.print_json({"version": registered.job_version, **asdict(done)})
    elif done.forgotten:
        render.say(f"{registered.job_version} is forgotten; pinning its content again starts anew.")
    else:
        render.say(f"{registered.job_version} is retired: its rows are gone, its sealed files stay.")


def dead_letters_command(
    version: VersionArgument,
    reason: Annotated[str | None, typer.Option("--reason", metavar="REASON", help="each record of this reason")] = None,
    retry: Annotated[
        str | None, typer.Option("--retry", metavar="REASON", help="put this class back: three fresh attempts each")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Records that were given up: by reason with examples, or one by one with --reason (or --json)."""
    check_reason(reason)
    here = deployment()
    registered = here.resolve(version)
    refuse_retired(registered)
    if retry is not None:
        if reason is not None:
            raise InputError("--reason lists dead letters and --retry puts them back; give one of the two.")
        _retry(here, registered, retry, as_json)
        return
    letters = here.ledger.outcomes.dead_letters(registered.job_version, reason=reason)
    if as_json:
        render.print_json([asdict(letter) for letter in letters])
    elif reason is not None:
        rows = [(one.record_id, one.shard, one.attempts, one.error, one.at) for one in letters]
        _table_or(("record id", "shard", "attempts", "error", "at"), rows, f"No dead letters of reason {reason}.")
    else:
        outcomes, counts = here.ledger.outcomes, here.ledger.progress.dead_letters_by_reason(registered.job_version)
        summary: list[tuple[object, ...]] = []
        for name, number in counts.items():
            examples = outcomes.dead_letter_examples(registered.job_version, name)
            ids = ", ".join(one.record_id for one in examples) + (", …" if number > len(examples) else "")
            summary.append((name, f"{number:,}", ids, examples[0].error if examples else ""))
        _table_or(("reason", "records", "examples", "an error"), summary, "No dead letters.")


def _retry(here: Deployment, registered: RegisteredVersion, reason: str, as_json: bool) -> None:
    done = retry_dead_letters(here, registered, reason)
    if as_json:
        render.print_json({"version": registered.job_version, **asdict(done)})
    elif done.retry is None:
        render.say(f"{registered.job_version} has no dead letters of reason {reason}; nothing was changed.")
    else:
        render.say(
            f"Retry {done.retry}: {done.records:,} records in {done.shards:,} shards are pending again, with three fresh "
            f"attempts each. `batch-assets run {registered.job_version}` answers them; check the version again after that."
        )


def _table_or(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]], otherwise: str) -> None:
    if rows:
        render.table(columns, rows)
    else:
        render.say(otherwise)
