"""Records that kill the engine or the whole worker: found by halves, charged alone, whatever else dies."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterable
from functools import partial

import pytest
import sqlalchemy as sa

from assets_tests.factories import make_job, record_id
from assets_tests.homes import Home
from assets_tests.waiting import wait_for
from assets_tests.workers import run_until_done, start_worker
from batch_assets.operations.work import work
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.tables import failures, trials

WINDOW = 64
# ⌈log2(window)⌉ to stand alone, the first death before that, and a death for each of the other attempts.
RESTARTS_MAX = int(math.log2(WINDOW)) + 3


def attempts(home: Home, registered: RegisteredVersion) -> list[tuple[str, int, str]]:
    """All failed attempts that the ledger knows of."""
    query = sa.select(failures.c.record_id, failures.c.attempt, failures.c.reason).where(
        failures.c.job_version == registered.job_version
    )
    with home.deployment.ledger.database.read() as connection:
        return [tuple(row) for row in connection.execute(query.order_by(failures.c.record_id, failures.c.attempt))]


def assert_only_these_died(home: Home, registered: RegisteredVersion, killers: Iterable[int]) -> None:
    """The killers are dead letters after three attempts each; every other record has a result, and no attempt."""
    state = home.status(registered)
    ids = [record_id(number) for number in killers]
    assert {one.record_id: one.reason for one in home.dead_letters(registered)} == dict.fromkeys(ids, "engine_killer")
    assert state["results"] == registered.records - len(ids)
    assert state["shards"]["completed"] == registered.shards
    assert attempts(home, registered) == [(one, attempt, "engine_killer") for one in ids for attempt in (1, 2, 3)]
    with home.deployment.ledger.database.read() as connection:
        assert connection.execute(sa.select(trials)).all() == []


def kills(what: str, numbers: Iterable[int], **behaviour: object) -> dict[str, object]:
    return {"records": {record_id(number): {what: True, **behaviour} for number in numbers}}


@pytest.mark.case("C13")
@pytest.mark.parametrize("killers", [(0,), (31,), (63,), (0, 1), (0, 63), (31, 32)])
def test_killers_in_one_window_are_found_within_the_bound(home: Home, killers: tuple[int, ...]) -> None:
    """log2(window) + 3 engine restarts for each culprit, and nobody else pays."""
    make_job(home.jobs, records=WINDOW, shard_size=WINDOW, script=kills("kills_engine", killers))
    registered, report = home.worked()
    assert_only_these_died(home, registered, killers)
    assert report.engine_restarts <= RESTARTS_MAX * len(killers)


def test_suspects_of_two_shards_are_narrowed_together(home: Home) -> None:
    """The window reaches over a shard's end: both shards are finished, whoever was in flight."""
    make_job(home.jobs, records=40, shard_size=20, script=kills("kills_engine", (7, 33), delay_s=0.05))
    registered, _ = home.worked()
    assert_only_these_died(home, registered, (7, 33))


@pytest.mark.parametrize("passing", [1, 2, 4, 7])
@pytest.mark.parametrize("moment", ["trial.before_commit", "trial.after_commit", "engine.before_submit"])
def test_the_narrowing_survives_the_worker(home: Home, moment: str, passing: int) -> None:
    """Killed at any step of a narrowing, the next worker goes on from there: the same culprit, nobody else."""
    make_job(home.jobs, records=WINDOW, shard_size=WINDOW, script=kills("kills_engine", (21,)), recoveries_max=20)
    registered = home.pinned()
    lives = run_until_done_after(home, registered.job_version, f"{moment}=kill@{passing}")
    assert lives <= 3
    assert_only_these_died(home, registered, (21,))


def run_until_done_after(home: Home, job_version: str, failpoints: str) -> int:
    """One life with a failpoint, then lives without."""
    first = start_worker(home, job_version, failpoints=failpoints).wait(120)
    assert first in (0, -9)
    return 1 + (0 if first == 0 else run_until_done(home, job_version, lives_max=3))


@pytest.mark.parametrize("killers", [(5,), (0, 63)])
def test_a_record_that_kills_whole_workers_is_found(home: Home, killers: tuple[int, ...]) -> None:
    """After two workers in a row the records run in groups that are written down first; the culprit is charged."""
    make_job(home.jobs, records=WINDOW, shard_size=WINDOW, script=kills("kills_worker", killers))
    registered = home.pinned()
    lives = run_until_done(home, registered.job_version, lives_max=(RESTARTS_MAX + 2) * len(killers))
    assert_only_these_died(home, registered, killers)
    assert lives <= (RESTARTS_MAX + 2) * len(killers)  # two workers, then the same narrowing; and the one that lived


def test_a_killer_of_workers_in_a_shard_larger_than_the_window(home: Home) -> None:
    """Groups are no larger than a window; the rest of the shard waits for its turn and is answered."""
    script = kills("kills_worker", (150,))
    make_job(home.jobs, records=200, shard_size=200, script=script, engine={"sequences_max": 8})
    registered = home.pinned()
    run_until_done(home, registered.job_version, lives_max=12)
    assert_only_these_died(home, registered, (150,))


DRAINED = 75


def alone_on_trial(home: Home, registered: RegisteredVersion, record: str, *, after: int = 0) -> int:
    """The epoch of the lease under which the record runs alone; 0 while it does not, under one after this."""
    columns = (trials.c.suspects, trials.c.running, trials.c.epoch)
    with home.deployment.ledger.database.read() as connection:
        row = connection.execute(sa.select(*columns).where(trials.c.job_version == registered.job_version)).first()
    is_alone = row is not None and row.running == 1 and json.loads(row.suspects)[0] == [record]
    return int(row.epoch) if row is not None and is_alone and row.epoch > after else 0


def innocent_alone(home: Home) -> RegisteredVersion:
    """A killer makes suspects of the others; of these, record 0 takes long when its turn comes."""
    faults = {record_id(1): {"kills_engine": True}, record_id(0): {"delay_s": 6.0}}
    make_job(
        home.jobs,
        records=2,
        shard_size=2,
        script={"records": faults},
        lease_s=2,
        renew_every_s=0.3,
        recoveries_max=20,
        drain_s=1,
    )
    return home.pinned()


def test_a_lease_lost_three_times_costs_an_innocent_record_nothing(home: Home) -> None:
    """Frozen past the lease while the record stands alone, again and again: the worker comes back and says so."""
    registered = innocent_alone(home)
    workers, epoch = [], 0
    for _ in range(3):
        worker = start_worker(home, registered.job_version)
        seen = partial(alone_on_trial, home, registered, record_id(0), after=epoch)
        epoch = wait_for("trial of the innocent", seen)
        worker.send_signal(signal.SIGSTOP)
        workers.append(worker)
        if len(workers) > 1:
            earlier = workers[-2]
            earlier.send_signal(signal.SIGCONT)
    workers[-1].send_signal(signal.SIGCONT)
    for worker in workers:
        assert worker.wait(120) == 0
    assert home.status(registered)["shards"]["completed"] == 1
    assert {one.record_id for one in home.dead_letters(registered)} == {record_id(1)}
    assert record_id(0) not in {row[0] for row in attempts(home, registered)}


def test_a_worker_that_leaves_while_the_store_is_away_blames_nobody(home: Home) -> None:
    """It cannot release its shard; the next worker on this machine knows that it went in good order."""
    registered, epoch = innocent_alone(home), 0
    for _ in range(3):
        worker = start_worker(home, registered.job_version, failpoints="release.before_commit=lose")
        seen = partial(alone_on_trial, home, registered, record_id(0), after=epoch)
        epoch = wait_for("trial of the innocent", seen)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == DRAINED
    work(home.deployment, registered)
    assert {one.record_id for one in home.dead_letters(registered)} == {record_id(1)}
    assert record_id(0) not in {row[0] for row in attempts(home, registered)}
