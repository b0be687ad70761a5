"""The command line as scripts and people use it: stable JSON, one-paragraph errors, exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from assets_tests import workers
from assets_tests.factories import PROMPT, make_job, record_id, requests_served, write_script
from assets_tests.homes import Home
from assets_tests.waiting import wait_for
from batch_assets.cli.ui import ui_command
from batch_assets.core.leases import SHARD_STATES
from batch_assets.worker.identity import pid_of

NESTED_SCHEMA = """\
from datetime import date
from enum import Enum
from typing import Literal, Optional

from pydantic import BaseModel, Field


class Tone(str, Enum):
    CALM = "calm"
    ANGRY = "angry"


class Party(BaseModel):
    name: str = Field(min_length=1, max_length=40)
    role: Literal["buyer", "seller"]
    age: Optional[int] = Field(default=None, ge=0, le=120)


class Output(BaseModel):
    tone: Tone
    parties: list[Party] = Field(max_length=3)
    due: Optional[date] = None
    score: float = Field(ge=0, le=1)
    flags: list[Literal["urgent", "legal"]] = Field(max_length=2)
    lead: Optional[Party] = None
"""


def environment(home: Home) -> dict[str, str]:
    """One process for the command and its steps: what is tested here is what it says."""
    return {**workers.environment(home), "BATCH_ASSETS_EXECUTOR": "in_process"}


def cli(home: Home, *arguments: str, expect: int = 0) -> str:
    """Run a command; returns its output, and its error text when it is expected to fail."""
    done = subprocess.run(
        [sys.executable, "-c", workers.CODE, *arguments],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if expect == 0 else done.stderr + done.stdout


def cli_json(home: Home, *arguments: str) -> Any:
    return json.loads(cli(home, *arguments, "--json"))


def test_a_job_from_folder_to_export_with_stable_json(home: Home, tmp_path: Path) -> None:
    """pin, plan, run, check, publish, rollback, export: each command's JSON has the promised keys."""
    make_job(
        home.jobs,
        script={"records": {record_id(3): {"error": "out of memory"}}},
        gate={"dead_letters": {"rate_max": 1}},
    )
    pinned = cli_json(home, "pin", "tiny")
    version = pinned["version"]
    assert (pinned["is_new"], pinned["records"], pinned["shards"]) == (True, 20, 4)
    assert cli_json(home, "plan", version)["records"] == 20
    before = cli_json(home, "status", version)
    assert before["shards"] == {"pending": 4, "leased": 0, "completed": 0, "needs_operator": 0, "cancelled": 0}
    cli(home, "run", "tiny")
    state = cli_json(home, "status")
    assert {
        "job", "version", "published", "records", "results", "dead_letters", "pending", "shards", "records_per_s",
        "tokens_per_s", "eta_s", "duplicates_discarded",
    } <= set(state)  # fmt: skip
    assert (state["results"], state["dead_letters"], state["pending"], state["eta_s"]) == (19, 1, 0, 0.0)
    (letter,) = cli_json(home, "dead-letters", "tiny")
    assert set(letter) == {"record_id", "shard", "reason", "error", "attempts", "at"}
    assert (letter["record_id"], letter["reason"], letter["attempts"]) == (record_id(3), "engine_error", 3)
    assert "no verdict" in cli(home, "publish", version, expect=1)
    assert cli_json(home, "check", version)["passed"] is True
    assert cli_json(home, "publish", version)["changed"] is True
    assert cli_json(home, "status", "tiny")["published"] == version
    assert "there is none before it" in cli(home, "rollback", "tiny", expect=1)
    assert [(one["version"], one["published"]) for one in cli_json(home, "versions", "tiny")] == [(version, True)]
    target = tmp_path / "out.parquet"
    assert cli_json(home, "export", "tiny", "--format", "parquet", "--output", str(target))["rows"] == 19
    assert pq.read_table(target).num_rows == 19


def test_a_failed_check_exits_with_1_and_says_which(home: Home) -> None:
    """CI sees the exit status, a person sees the verdict."""
    script = {"records": {record_id(3): {"error": "out of memory"}}}
    make_job(home.jobs, script=script, gate={"dead_letters": {"rate_max": 0}})
    home.worked()
    output = cli(home, "check", "tiny", expect=1)
    assert "FAILED" in output
    assert "1 of 20 records (5.00%; at most 0.00% allowed)" in output


def test_another_schema_with_nested_and_optional_fields(home: Home, tmp_path: Path) -> None:
    """Enums, nested models, optionals, dates and lists go from the engine to every export."""
    gate = {"dead_letters": {"rate_max": 0}}
    make_job(home.jobs, name="deals", records=300, shard_size=100, output_schema=NESTED_SCHEMA, gate=gate)
    cli(home, "pin", "deals")
    cli(home, "run", "deals")
    cli(home, "check", "deals")
    cli(home, "publish", "deals")
    for file_format in ("parquet", "csv", "jsonl"):
        cli(home, "export", "deals", "--format", file_format, "--output", str(tmp_path / f"out.{file_format}"))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 300
    assert {row["tone"] for row in rows} == {"calm", "angry"}
    assert all(set(party) == {"name", "role", "age"} for row in rows for party in row["parties"])


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "job": (["pin", "nothing"], 2, "There is no job 'nothing'; the jobs are support_tickets, tiny."),
    "version": (["status", "v9_nothing"], 2, "is neither a job nor a job version"),
    "unpinned": (["run", "tiny"], 2, "The job 'tiny' has no version yet; run `batch-assets pin tiny` first."),
    "rollback": (["rollback", "tiny"], 1, "tiny has nothing published, so there is nothing to roll back."),
    "format": (["export", "tiny", "--format", "xml", "--output", "x"], 2, "'xml' is not one of parquet, csv, jsonl"),
    "command": (["pinn"], 2, "No such command 'pinn'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_paragraph_with_a_status(home: Home, name: str) -> None:
    """No traceback, a remedy, status 2 for bad input and 1 for a refusal."""
    make_job(home.jobs)
    arguments, status, message = ERRORS[name]
    assert message in cli(home, *arguments, expect=status)


def test_a_broken_snapshot_leaves_nothing_behind(home: Home) -> None:
    """Pinning is everything or nothing; the error names the line."""
    job = make_job(home.jobs, snapshot={"path": "records.jsonl"})
    (job / "records.jsonl").write_text(
        '{"record_id": "a", "subject": "s", "body": "b", "record_class": "c", "acl": "x"}\n{"reco'
    )
    assert "records.jsonl, line 2: not valid JSON" in cli(home, "pin", "tiny", expect=2)
    assert cli_json(home, "versions") == []


def test_the_demo_says_when_there_is_nothing_to_do(home: Home) -> None:
    """A second demo recomputes nothing; an edited prompt makes a version, and rollback undoes it."""
    job = make_job(home.jobs, script={"requests_log": "requests.jsonl"})
    first = cli(home, "demo", "tiny")
    assert "tiny now shows v1_" in first
    served = requests_served(job / "requests.jsonl")
    second = cli(home, "demo", "tiny")
    assert "Nothing is recomputed" in second
    assert "is published already" in second
    assert requests_served(job / "requests.jsonl") == served
    old = cli_json(home, "status", "tiny")["published"]
    (job / "prompt.md").write_text(PROMPT.replace("Sort", "Put"))
    assert f"(before: {old})" in cli(home, "demo", "tiny")
    assert cli_json(home, "status", "tiny")["published"] != old
    assert f"tiny now shows {old}" in cli(home, "rollback", "tiny")
    # The UI hears of a move that was made on the command line.
    with dg.DagsterInstance.from_config(str(home.deployment.settings.dagster_home)) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["tiny", "published"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["version"].value == old
    assert event.asset_materialization.metadata["move"].value == "rollback"


@pytest.mark.parametrize("victim", ["command", "worker"])
def test_kill_9_of_a_run_costs_only_what_was_in_flight(home: Home, victim: str) -> None:
    """Whether the command or its worker is killed: running again finishes and redoes no stored record."""
    slow = {record_id(n): {"delay_s": 30.0} for n in range(300, 400)}
    script = {"requests_log": "requests.jsonl", "records": slow}
    job = make_job(home.jobs, records=400, shard_size=100, script=script)
    cli(home, "pin", "tiny")
    registered = home.deployment.resolve("tiny")
    run = subprocess.Popen(
        [sys.executable, "-c", workers.CODE, "run", "tiny"], env=environment(home), stdout=subprocess.DEVNULL
    )

    def last_shard_is_begun() -> bool:
        return home.status(registered)["shards"] == {**quiet, "completed": 3, "leased": 1}

    quiet = dict.fromkeys(SHARD_STATES, 0)
    wait_for("last shard, with all that is quick stored", last_shard_is_begun)
    state = home.status(registered)
    worker = pid_of(state["workers"][0])
    assert worker is not None
    os.kill(run.pid if victim == "command" else worker, 9)
    run.wait(60)
    write_script(job, {"requests_log": "requests.jsonl"})
    before = len(requests_served(job / "requests.jsonl"))
    cli(home, "run", "tiny")
    state = home.status(registered)
    assert (state["results"], state["shards"]["completed"]) == (400, 4)
    again = Counter(requests_served(job / "requests.jsonl")[before:])
    assert set(again) <= set(slow)
    assert max(again.values()) == 1


def test_a_run_of_a_job_says_when_its_folder_has_moved_on(home: Home) -> None:
    """An edited prompt that was not pinned does not enter the run, and that is said."""
    make_job(home.jobs)
    cli(home, "pin", "tiny")
    make_job(home.jobs, prompt=PROMPT.replace("Sort", "Put"))
    assert "Note: prompt.md changed since v1_" in cli(home, "run", "tiny")


def test_json_is_all_that_goes_to_standard_output(home: Home) -> None:
    """Progress of a run goes to standard error when JSON was asked for, and so does what a schema file prints."""
    job = make_job(home.jobs)
    schema = (job / "output_schema.py").read_text()
    (job / "output_schema.py").write_text(schema + "\nprint('hello')\n")
    cli_json(home, "pin", "tiny")
    assert cli_json(home, "run", "tiny")["results"] == 20
    assert cli_json(home, "status", "tiny")["eta_s"] == 0.0


def test_the_ui_can_be_ended_where_a_script_started_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell script's `&` leaves SIGINT ignored; Dagster would take that over for both signals and never end."""
    found: list[object] = []

    def started(*_: object) -> None:
        found.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))

    monkeypatch.setenv("BATCH_ASSETS_HOME", str(home.deployment.settings.home))
    monkeypatch.setattr(os, "execve", started)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ui_command(port=1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert found == [signal.SIG_DFL, signal.SIG_DFL]
