"""Ids that are not their own key in the ledger: too long for an index, or with NUL. Through everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assets_tests.factories import make_job, requests_served, write_script
from assets_tests.homes import Home, temporary_home
from assets_tests.postgresql import Server
from assets_tests.waiting import wait_for
from assets_tests.workers import run_until_done, start_worker
from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.suspects import Groups
from batch_assets.errors import EngineUnavailable
from batch_assets.operations.check import check
from batch_assets.operations.intervene import retry_dead_letters
from batch_assets.operations.publish import publish
from batch_assets.operations.work import work
from batch_assets.storage.outcomes import Put
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.record_keys import key_columns

LOG = "requests.jsonl"
LONG = "long-" + "x" * 10_000
IDS = (
    LONG,
    LONG + "y",
    LONG.upper(),
    "語" * 3_400,
    "n" * 5_000 + "\x00" + "n" * 5_000,
    "a\x00b",
    "a\x01b",
    "a\x00",
    "\x00",
    "\x01\x03" + str(key_columns(LONG)["record_id"])[2:],  # what a key of a long id looks like
    "",
    "plain",
)


@pytest.fixture
def home(tmp_path: Path, ledger_url: str) -> Iterator[Home]:
    """An empty home, once on each kind of ledger."""
    with temporary_home(tmp_path, ledger=ledger_url) as opened:
        yield opened


def records(ids: tuple[str, ...] = IDS) -> list[dict[str, Any]]:
    return [{"record_id": one, "subject": "s", "body": "b", "record_class": "c", "acl": one} for one in ids]


def script(**behaviours: dict[str, Any]) -> dict[str, Any]:
    return {"requests_log": LOG, "records": behaviours}


def assert_whole(home: Home, registered: RegisteredVersion, *, dead: dict[str, str]) -> None:
    """Each record has the outcome that is due, the checks find nothing, and the table is published."""
    assert {letter.record_id: letter.reason for letter in home.dead_letters(registered)} == dead
    rows = home.sealed_rows(registered)
    assert sorted(row["record_id"] for row in rows) == sorted(set(IDS) - set(dead))
    assert all(row["acl"] == row["record_id"] for row in rows)
    assert [verdict.summary for verdict in check(home.deployment, registered) if not verdict.passed] == []


def test_a_put_knows_such_an_id_again(home: Home) -> None:
    """The first result of each stands, a second is counted; failures and dead letters name the very id."""
    make_job(home.jobs, records=records(), shard_size=len(IDS), script=script())
    registered = home.pinned()
    ledger = home.deployment.ledger
    lease = ledger.leases.claim(registered.job_version, owner="w", lease_s=60, wanted=range(1))
    assert isinstance(lease, Lease)
    first = ledger.outcomes.put(Put(lease=lease, results=[_result(one, "1") for one in IDS[:6]]))
    second = ledger.outcomes.put(Put(lease=lease, results=[_result(one, "2") for one in IDS[:6]]))
    assert (first.stored, second.stored, second.discarded) == (6, 0, 6)
    ledger.outcomes.put(Put(lease=lease, failures=[_failure(one, attempt=1) for one in IDS[6:]]))
    assert ledger.outcomes.failed_attempts(registered.job_version, 0) == dict.fromkeys(IDS[6:], 1)
    ledger.outcomes.put(Put(lease=lease, failures=[_failure(one, attempt=3) for one in IDS[6:]]))
    late = ledger.outcomes.put(Put(lease=lease, results=[_result(one, "3") for one in IDS[6:]]))
    assert (late.stored, late.discarded) == (0, 6)
    assert ledger.outcomes.settled_ids(registered.job_version, 0) == set(IDS)
    stored = ledger.outcomes.results_of_shard(registered.job_version, 0)
    assert {one.record_id: one.payload for one in stored} == dict.fromkeys(IDS[:6], "1")
    assert {one.record_id for one in home.dead_letters(registered)} == set(IDS[6:])


def _result(record_id: str, payload: str) -> Result:
    return Result(
        record_id=record_id,
        payload=payload,
        attempt=1,
        finish_reason="stop",
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=1,
    )


def _failure(record_id: str, *, attempt: int) -> Failure:
    return Failure(record_id=record_id, attempt=attempt, reason=Reason.ENGINE_ERROR, error=record_id)


@pytest.mark.parametrize("killer", [LONG, IDS[4], "\x00", ""], ids=["10 kB", "10 kB with NUL", "NUL", "nothing"])
def test_such_a_record_is_found_when_it_kills_the_engine(home: Home, killer: str) -> None:
    """Its trial is kept between workers, it alone is charged three times, and an operator can put it back."""
    job = make_job(
        home.jobs,
        records=records(),
        shard_size=len(IDS),
        script=script(**{killer: {"kills_engine": True}}),
        engine={"restarts_max": 1},
        gate={"dead_letters": {"rate_max": 1}},
        recoveries_max=100,
    )
    registered = home.pinned()
    trials: list[set[str]] = []
    for _life in range(8):
        try:
            work(home.deployment, registered)
            break
        except EngineUnavailable:
            trials.append({one for group in _trial_groups(home, registered) for one in group})
    assert killer in trials[0]
    assert_whole(home, registered, dead={killer: "engine_killer"})
    write_script(job, script())
    assert retry_dead_letters(home.deployment, registered, "engine_killer").records == 1
    work(home.deployment, registered)
    assert_whole(home, registered, dead={})
    publish(home.deployment, registered)


def _trial_groups(home: Home, registered: RegisteredVersion) -> Groups:
    """The suspects as the next worker will read them."""
    lease = Lease(job_version=registered.job_version, shard=0, epoch=0, owner="", records=0)
    return home.deployment.ledger.trials.of(lease).groups


def test_such_records_are_skipped_after_a_worker_was_killed(home: Home) -> None:
    """What was stored is not asked again; the attempts used up before the kill still count."""
    slow = {LONG: {"never_returns": True}, "a\x00b": {"never_returns": True}}
    failing = {IDS[4]: {"error": IDS[4]}}
    job = make_job(
        home.jobs,
        records=records(),
        shard_size=len(IDS),
        script=script(**slow, **failing),
        gate={"dead_letters": {"rate_max": 1}},
    )
    registered = home.pinned()
    worker = start_worker(home, registered.job_version)
    try:
        wait_for("answers", lambda: home.status(registered)["pending"] == len(slow))
    finally:
        worker.kill()
        worker.wait()
    before = len(requests_served(job / LOG))
    write_script(job, script())
    work(home.deployment, registered)
    assert sorted(requests_served(job / LOG)[before:]) == sorted(slow)
    assert_whole(home, registered, dead={IDS[4]: "engine_error"})


def test_such_a_record_that_kills_whole_workers_is_given_up(tmp_path: Path, postgresql: Server) -> None:
    """kill -9 by a record whose id is 10 kB with NUL: its successors narrow it down and finish the rest."""
    killer = IDS[4]
    with temporary_home(tmp_path, ledger=postgresql.new_database()) as home:
        make_job(
            home.jobs,
            records=records((killer, LONG)),
            script=script(**{killer: {"kills_worker": True}}),
            gate={"dead_letters": {"rate_max": 1}},
        )
        registered = home.pinned()
        run_until_done(home, registered.job_version, lives_max=10)
        (letter,) = home.dead_letters(registered)
        assert (letter.record_id, letter.reason, letter.attempts) == (killer, "engine_killer", 3)
        assert [row["record_id"] for row in home.sealed_rows(registered)] == [LONG]
        assert all(verdict.passed for verdict in check(home.deployment, registered))
