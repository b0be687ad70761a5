"""Engines that hang, never start or die for ever: bounded, released, and said in one line with its own status."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from assets_tests.factories import make_job, record_id, requests_served, write_script
from assets_tests.homes import Home
from assets_tests.waiting import wait_for
from assets_tests.workers import batch_assets, start_worker
from batch_assets.errors import EngineUnavailable
from batch_assets.operations.work import work
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.tables import failures
from batch_assets.worker.identity import machine, owner_name, start_time
from batch_assets.worker.orphans import EngineProcesses

ENGINE_UNAVAILABLE = 69


def one_line(text: str) -> str:
    """The error a command ends with; the lines before it are warnings."""
    lines = [line for line in text.splitlines() if line.startswith("batch-assets: ")]
    assert len(lines) == 1, text
    return lines[0]


def evict_after_progress(home: Home, registered: RegisteredVersion, number: int) -> None:
    before = home.status(registered)["results"]
    worker = start_worker(home, registered.job_version)
    wait_for("progress", lambda: home.status(registered)["results"] > before or worker.poll() is not None)
    worker.send_signal(number)
    worker.wait(60)


def failed_attempts(home: Home) -> list[Any]:
    with home.deployment.ledger.database.read() as connection:
        return list(connection.execute(sa.select(failures.c.record_id, failures.c.reason)))


@pytest.mark.case("C14")
def test_an_engine_that_hangs_is_restarted_and_the_shard_goes_on(home: Home) -> None:
    """Alive, but silent: a new engine after the progress deadline; the record that did it is found and charged."""
    script = {"records": {record_id(9): {"hangs_engine": True}}}
    make_job(
        home.jobs, records=16, shard_size=16, script=script, engine={"progress_deadline_s": 0.3, "record_deadline_s": 1}
    )
    registered, report = home.worked()
    assert {one.record_id: one.reason for one in home.dead_letters(registered)} == {record_id(9): "timeout"}
    assert home.status(registered)["results"] == 15
    assert report.engine_restarts >= 1
    assert {row.record_id for row in failed_attempts(home)} == {record_id(9)}


@pytest.mark.case("C16")
def test_an_engine_that_never_starts_ends_the_worker_with_its_own_status(home: Home) -> None:
    """Start-up has a deadline; no shard is held meanwhile, and the next worker finds everything pending."""
    make_job(home.jobs, records=4, script={"defaults": {"start_s": 60}}, engine={"start_deadline_s": 0.2})
    registered = home.pinned()
    done = batch_assets(home, "work", registered.job_version)
    assert done.returncode == ENGINE_UNAVAILABLE
    assert "engine.start_deadline_s" in one_line(done.stderr)
    assert home.status(registered)["shards"] == {
        "pending": 1, "leased": 0, "completed": 0, "needs_operator": 0, "cancelled": 0,
    }  # fmt: skip


def test_an_engine_that_dies_for_ever_ends_the_worker_and_says_where(home: Home) -> None:
    """Restarts are bounded; the shard is handed back with what is known, and costs the others nothing."""
    script = {"records": {record_id(n): {"kills_engine": True} for n in range(10)}}
    make_job(home.jobs, records=10, shard_size=5, script=script, engine={"restarts_max": 2})
    registered = home.pinned()
    done = batch_assets(home, "work", registered.job_version)
    assert done.returncode == ENGINE_UNAVAILABLE
    assert "engine.restarts_max" in one_line(done.stderr)
    state = home.status(registered)
    assert (state["shards"]["leased"], state["workers"]) == (0, [])
    troubles = [row.trouble for row in home.deployment.ledger.progress.shards(registered.job_version)]
    assert any(trouble and "engine died" in trouble for trouble in troubles)


@pytest.mark.case("C51")
def test_a_shard_that_fails_every_recovery_waits_for_an_operator(home: Home) -> None:
    """A crash at the same point each time: a bounded number of workers, then a person, with what is known."""
    make_job(home.jobs, records=10, shard_size=5, recoveries_max=3, script={})
    registered = home.pinned()
    lives = 0
    while start_worker(home, registered.job_version, failpoints="seal.before_put=kill").wait(60) != 0:
        lives += 1
        assert lives <= 10
    state = home.status(registered)
    assert state["shards"]["needs_operator"] == 2
    assert lives <= 2 * 4  # each shard: one worker that gets on, then recoveries_max that do not
    (first, _) = home.deployment.ledger.progress.shards(registered.job_version)
    assert "was lost without notice" in str(first.trouble)
    assert failed_attempts(home) == []
    listed = json.loads(
        batch_assets(home, "shards", registered.job_version, "--state", "needs_operator", "--json").stdout
    )
    assert [one["shard"] for one in listed] == [0, 1]
    for _ in range(2):  # handing back twice is harmless
        assert batch_assets(home, "requeue", registered.job_version, "0", "1").returncode == 0
    work(home.deployment, registered)
    assert home.status(registered)["shards"]["completed"] == 2


@pytest.mark.case("C19")
def test_an_engine_process_left_behind_is_ended_by_the_next_start(home: Home) -> None:
    """kill -9 of a worker leaves its engine's process; the next worker on this machine finds and ends it."""
    job = make_job(
        home.jobs, records=4, script={"defaults": {"process": True}, "records": {record_id(0): {"never_returns": True}}}
    )
    registered = home.pinned()
    worker = start_worker(home, registered.job_version)
    notes = home.deployment.settings.root / "engines"
    note = wait_for("note of the engine's process", lambda: next(iter(notes.glob("*.json")), None))
    (pid,) = map(int, json.loads(note.read_text())["processes"])
    worker.kill()
    worker.wait()
    assert start_time(pid) is not None  # the orphan
    write_script(job, {})
    report = work(home.deployment, registered)
    assert start_time(pid) is None
    assert [str(pid) in line for line in report.orphans_ended] == [True]
    assert list(notes.glob("*.json")) == []


def test_processes_of_living_workers_and_reused_numbers_are_left_alone(tmp_path: Path) -> None:
    """Only a process that certainly is a dead worker's engine is ended."""
    processes = EngineProcesses(tmp_path)
    processes.note(owner_name(), (os.getpid(),))  # a living worker, this one
    dead = f"{machine()}:999999999:1"
    processes.note(dead, (os.getpid(),))
    (file,) = [one for one in tmp_path.glob("*.json") if dead in one.read_text()]
    noted = json.loads(file.read_text())
    file.write_text(json.dumps({**noted, "processes": {str(os.getpid()): "1"}}))  # started at another time
    assert processes.end_orphans() == []
    os.kill(os.getpid(), 0)


@pytest.mark.case("C64")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_twenty_evictions_cost_no_record_an_attempt(home: Home, number: int) -> None:
    """With notice or without: as long as there is progress, nobody is suspected, and no stored record is redone."""
    script = {"defaults": {"delay_s": 0.02}, "requests_log": "requests.jsonl"}
    job = make_job(home.jobs, records=400, shard_size=100, engine={"sequences_max": 4}, script=script)
    registered = home.pinned()
    for _ in range(20):
        evict_after_progress(home, registered, number)
    work(home.deployment, registered)
    state = home.status(registered)
    assert (state["results"], state["dead_letters"], state["shards"]["completed"]) == (400, 0, 4)
    assert failed_attempts(home) == []
    in_flight_and_unflushed = 20 * (8 + 256)
    assert len(requests_served(job / "requests.jsonl")) <= 400 + (
        0 if number == signal.SIGTERM else in_flight_and_unflushed
    )


def test_the_restarts_limit_is_the_workers_not_the_records(home: Home) -> None:
    """A worker that gave up has charged nobody who did not stand alone."""
    script = {"records": {record_id(n): {"kills_engine": True} for n in (0, 1)}}
    make_job(home.jobs, records=8, shard_size=8, script=script, engine={"restarts_max": 0})
    registered = home.pinned()
    with pytest.raises(EngineUnavailable):
        work(home.deployment, registered)
    assert failed_attempts(home) == []
