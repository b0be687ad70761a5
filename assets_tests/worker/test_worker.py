"""The worker against faults: every record ends in exactly one outcome, and nothing stored is redone."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assets_tests.factories import make_job, make_records, record_id, requests_served, write_script
from assets_tests.homes import Home
from assets_tests.waiting import wait_for
from assets_tests.workers import start_worker
from batch_assets.errors import EngineUnavailable, SnapshotError
from batch_assets.operations.work import work

LOG = "requests.jsonl"
ANSWER = json.dumps({"category": "bug", "summary": "s", "entities": []})


def script(records: dict[str, Any] | None = None, **defaults: Any) -> dict[str, Any]:
    return {"defaults": defaults, "requests_log": LOG, "records": records or {}}


def assert_whole(home: Home, registered: Any, *, dead: dict[str, str]) -> None:
    """Results + dead letters = snapshot, each record once, every shard sealed."""
    state = home.status(registered)
    assert state["shards"]["completed"] == registered.shards
    assert state["results"] + state["dead_letters"] == registered.records
    assert {one.record_id: one.reason for one in home.dead_letters(registered)} == dead
    ids = [row["record_id"] for row in home.sealed_rows(registered)]
    assert len(ids) == len(set(ids)) == registered.records - len(dead)


def test_a_clean_run_answers_every_record_once(home: Home) -> None:
    """Each record is asked once, stored once, with the labels of its source, shards in order."""
    job = make_job(home.jobs, records=23, shard_size=5, script=script())
    registered, report = home.worked()
    assert_whole(home, registered, dead={})
    assert Counter(requests_served(job / LOG)) == Counter(record_id(n) for n in range(23))
    labels = {row["record_id"]: row["acl"] for row in home.sealed_rows(registered)}
    assert labels == {row["record_id"]: row["acl"] for row in make_records(23)}
    assert (report.shards_completed, report.results, report.duplicates_discarded) == (5, 23, 0)


@pytest.mark.case("C01", "C04", "C23")
def test_each_kind_of_bad_record_costs_only_itself(home: Home) -> None:
    """Three attempts, then a dead letter with its own reason; the others are answered."""
    records = make_records(12)
    records[0] |= {"subject": "", "body": "   "}
    records[1] |= {"body": "word " * 3000}
    records[2] |= {"subject": None, "body": None}
    faults = {
        record_id(3): {"text": "not JSON"},
        record_id(4): {"text": '{"category": "weather", "summary": "s", "entities": []}'},
        record_id(5): {"finish_reason": "length", "text": ANSWER},  # parses, and is still not a success
        record_id(6): {"error": "out of memory"},
        record_id(7): {"fail_attempts": 2},
    }
    job = make_job(home.jobs, records=records, script=script(faults))
    registered, _ = home.worked()
    assert_whole(
        home,
        registered,
        dead={
            record_id(0): "empty_input",
            record_id(1): "input_too_long",
            record_id(2): "empty_input",
            record_id(3): "invalid_output",
            record_id(4): "invalid_output",
            record_id(5): "truncated",
            record_id(6): "engine_error",
        },
    )
    served = Counter(requests_served(job / LOG))
    assert {served[record_id(n)] for n in (0, 1, 2)} == {0}  # never sent to the engine
    assert {served[record_id(n)] for n in (3, 4, 5, 6, 7)} == {3}
    errors = {one.record_id: one.error for one in home.dead_letters(registered)}
    assert "input tokens, 2,000 allowed" in errors[record_id(1)]
    assert "category" in errors[record_id(4)]
    assert errors[record_id(6)] == "out of memory"


def test_the_second_attempt_may_be_longer(home: Home) -> None:
    """The output cap follows the pinned ladder: attempt k uses entry k, the last one repeats."""
    make_job(home.jobs, records=2, script=script(), decoding={"input_tokens_max": 500, "output_tokens_max": [10, 20]})
    version = home.deployment.version(home.pinned())
    assert [version.decoding.output_tokens_for(attempt) for attempt in (1, 2, 3)] == [10, 20, 20]


@pytest.mark.case("C13")
@pytest.mark.parametrize("killers", [[7], [2, 19], [0, 1]])
def test_engine_killers_are_found_and_charged_alone(home: Home, killers: list[int]) -> None:
    """Whoever kills the engine is narrowed down within bounds; everyone else gets a result."""
    faults = {record_id(n): {"kills_engine": True} for n in killers}
    make_job(home.jobs, records=24, shard_size=24, script=script(faults), engine={"restarts_max": 30})
    registered, report = home.worked()
    assert_whole(home, registered, dead={record_id(n): "engine_killer" for n in killers})
    # log2(24) rounded up, one to stand alone, and two more attempts: for each killer.
    assert report.engine_restarts <= len(killers) * (5 + 1 + 2)


def test_an_engine_that_keeps_dying_stops_the_worker_and_loses_nothing(home: Home) -> None:
    """Restarts are bounded; what was stored stays, the shard is handed back, the error says what to do."""
    faults = {record_id(7): {"kills_engine": True, "delay_s": 0.2}}
    job = make_job(home.jobs, records=10, shard_size=5, script=script(faults), engine={"restarts_max": 1})
    registered = home.pinned()
    with pytest.raises(EngineUnavailable, match=r"engine\.restarts_max"):
        work(home.deployment, registered)
    state = home.status(registered)
    assert state["shards"]["leased"] == 0
    assert state["results"] >= 5
    write_script(job, script())
    work(home.deployment, registered)
    assert_whole(home, registered, dead={})
    served = Counter(requests_served(job / LOG))
    assert max(served.values()) <= 3


@pytest.mark.case("C15")
def test_a_record_that_never_returns_times_out(home: Home) -> None:
    """Its deadline is its own: three attempts, then a dead letter; the others are not held up."""
    faults = {record_id(n): {"never_returns": True} for n in (3, 8)}
    engine = {"record_deadline_s": 0.3, "progress_deadline_s": 30}
    make_job(home.jobs, records=20, shard_size=10, script=script(faults), engine=engine)
    registered, report = home.worked()
    assert_whole(home, registered, dead={record_id(3): "timeout", record_id(8): "timeout"})
    assert (report.records_aborted, report.engine_restarts) == (6, 0)


def test_an_engine_that_falls_silent_is_restarted(home: Home) -> None:
    """No completion at all for too long: a new engine; the silent records are tried in smaller groups."""
    faults = {record_id(n): {"never_returns": True} for n in (1, 2)}
    engine = {"record_deadline_s": 1.0, "progress_deadline_s": 0.4}
    make_job(home.jobs, records=6, shard_size=6, script=script(faults), engine=engine)
    registered, report = home.worked()
    assert_whole(home, registered, dead={record_id(1): "timeout", record_id(2): "timeout"})
    assert report.engine_restarts >= 1


def test_a_second_run_has_nothing_to_do(home: Home) -> None:
    """A completed version is not worked on again: no engine starts, no record is asked for."""
    job = make_job(home.jobs, script=script())
    registered, _ = home.worked()
    before = requests_served(job / LOG)
    report = work(home.deployment, registered)
    assert (report.engine, report.results) == (None, 0)
    assert requests_served(job / LOG) == before


@pytest.mark.case("C43")
def test_a_changed_snapshot_is_refused_before_the_engine_starts(home: Home) -> None:
    """A snapshot file that is shorter than pinned is an error before any work."""
    job = make_job(home.jobs, records=20, script=script())
    registered = home.pinned()
    make_job(home.jobs, records=19, script=script())
    with pytest.raises(SnapshotError, match=r"records\.parquet"):
        work(home.deployment, registered)
    assert requests_served(job / LOG) == []


def test_a_lost_lease_stops_the_worker_on_that_shard(home: Home) -> None:
    """Fenced in the middle: the zombie stores nothing more, the heir finishes, every record is stored once."""
    job = make_job(home.jobs, records=10, shard_size=5, script=script(delay_s=0.6), lease_s=60, renew_every_s=0.1)
    registered = home.pinned()
    stolen: list[int] = []

    def steal_once() -> bool:
        leases = home.deployment.ledger.leases
        if not stolen and home.status(registered)["shards"]["leased"] == 2 and requests_in_flight(job):
            # Whoever reclaims a shard moves its epoch; to the first worker that is all that matters.
            leases.reclaim_dead(registered.job_version, lambda _owner: True)
            heir = leases.claim(registered.job_version, owner="heir", lease_s=60, wanted=range(1))
            assert heir is not None
            stolen.append(heir.shard)
            leases.release(heir)
        return False

    report = work(home.deployment, registered, should_stop=steal_once)
    assert stolen == [0]
    assert report.leases_lost >= 1
    assert report.records_aborted >= 1
    assert_whole(home, registered, dead={})


def requests_in_flight(job: Path) -> bool:
    return not requests_served(job / LOG)  # nothing is answered yet: all are in the engine


@pytest.mark.case("D03")
def test_a_killed_worker_is_replaced_at_once_and_no_stored_record_is_redone(home: Home) -> None:
    """kill -9 in mid-run: the next worker takes over without waiting for the lease, and skips what is stored."""
    slow = {record_id(n): {"delay_s": 5.0} for n in range(150, 200)}
    job = make_job(home.jobs, records=200, shard_size=50, script=script(slow))
    registered = home.pinned()
    process = start_worker(home, registered.job_version)
    # Completed shards, and a part of the others: everything that is quick is stored.
    wait_for("everything that is quick", lambda: home.status(registered)["results"] == 150)
    process.kill()
    process.wait()
    stored = 150
    write_script(job, script())
    before = len(requests_served(job / LOG))
    started = time.monotonic()
    work(home.deployment, registered)
    assert time.monotonic() - started < 60  # the lease is 600 s: nobody waited for it
    assert_whole(home, registered, dead={})
    again = requests_served(job / LOG)[before:]
    assert len(again) == 200 - stored
    assert set(again) == set(slow)


@pytest.mark.case("D13")
def test_sigterm_stores_what_is_in_flight_and_hands_back(home: Home) -> None:
    """A drained worker exits with status 75, holds no lease, and its successor asks for the rest only."""
    job = make_job(home.jobs, records=2000, shard_size=100, script=script(delay_s=0.3))
    registered = home.pinned()
    process = start_worker(home, registered.job_version)
    wait_for("first results", lambda: home.status(registered)["results"] > 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    state = home.status(registered)
    assert state["shards"]["leased"] == 0
    assert 0 < state["results"] < 2000
    served = Counter(requests_served(job / LOG))
    assert state["results"] == len(served)  # nothing that was answered is lost
    write_script(job, script())
    work(home.deployment, registered)
    assert_whole(home, registered, dead={})
    assert max(Counter(requests_served(job / LOG)).values()) == 1
