"""What has gone wrong in comparable systems, as their users would meet it here: with real worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from assets_tests.factories import make_job, record_id, requests_served, write_script
from assets_tests.homes import Home
from assets_tests.waiting import wait_for
from assets_tests.workers import environment, start_worker
from batch_assets.core.leases import Lease
from batch_assets.engine.scripted import ScriptedEngine
from batch_assets.operations.plan import plan
from batch_assets.operations.work import work
from batch_assets.storage.leases import Leases
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.worker.heartbeat import Heartbeat

LOG = "requests.jsonl"


def engine_process(home: Home) -> int:
    """The process of the only engine that runs in this home."""
    (note,) = (home.deployment.settings.root / "engines").glob("*.json")
    (pid,) = map(int, json.loads(note.read_text())["processes"])
    return pid


def assert_whole(home: Home, registered: RegisteredVersion, *, dead: int = 0) -> None:
    """Every record once, in sealed files that hold what the ledger counts."""
    state = home.status(registered)
    assert state["shards"]["completed"] == registered.shards
    assert (state["results"], state["dead_letters"]) == (registered.records - dead, dead)
    ids = [row["record_id"] for row in home.sealed_rows(registered)]
    assert len(ids) == len(set(ids)) == registered.records - dead


@pytest.mark.case("C12")
def test_an_engine_that_dies_once_costs_nobody_anything(home: Home) -> None:
    """The process of the engine is killed in mid-shard: a new one is started, and what is stored is not asked again."""
    script = {"defaults": {"process": True, "delay_s": 0.2}, "requests_log": LOG}
    job = make_job(home.jobs, records=200, shard_size=50, script=script, engine={"sequences_max": 16})
    registered = home.pinned()
    killed: list[int] = []

    def kill_once() -> bool:
        if not killed and home.status(registered)["results"] >= 30:
            killed.append(engine_process(home))
            os.kill(killed[0], signal.SIGKILL)
        return False

    report = work(home.deployment, registered, should_stop=kill_once)
    assert (report.engine_restarts, report.dead_letters) == (1, 0)
    assert_whole(home, registered)
    assert len(requests_served(job / LOG)) == 200  # those in flight had not been answered yet


@pytest.mark.case("C32")
@pytest.mark.parametrize(
    "moment", ["seal.before_put", "seal.after_put", "complete.before_commit", "complete.after_commit"]
)
def test_a_crash_around_sealing_neither_doubles_nor_loses_a_row(home: Home, moment: str) -> None:
    """Between file and commit, before, or after: the next worker seals the same rows into the same file."""
    job = make_job(home.jobs, records=20, shard_size=10, script={"requests_log": LOG})
    registered = home.pinned()
    assert start_worker(home, registered.job_version, failpoints=f"{moment}=kill").wait(60) == -signal.SIGKILL
    work(home.deployment, registered)
    assert_whole(home, registered)
    files = list((home.deployment.objects.root / "results").rglob("*.parquet"))
    assert len(files) == 2
    served = Counter(requests_served(job / LOG))
    assert {served[record_id(n)] for n in range(10)} == {1}  # the shard that was sealed had all its results stored


@pytest.mark.case("C35", "C48", "D10")
def test_a_worker_frozen_past_its_lease_writes_nothing_when_it_thaws(home: Home) -> None:
    """Its heir finishes the shard; the thawed one notices, stores nothing and completes nothing."""
    slow = {record_id(n): {"delay_s": 1.0} for n in range(5, 40)}
    script = {"requests_log": LOG, "records": slow}
    job = make_job(
        home.jobs, records=40, shard_size=40, script=script, lease_s=2, renew_every_s=0.3, engine={"sequences_max": 5}
    )
    registered = home.pinned()
    owner = start_worker(home, registered.job_version)
    wait_for("first results", lambda: home.status(registered)["results"] >= 5)
    owner.send_signal(signal.SIGSTOP)
    at_freeze = len(requests_served(job / LOG))
    write_script(job, {"requests_log": LOG})
    heir = work(home.deployment, registered)  # waits for the lease to run out, and takes the shard over
    assert heir.shards_completed == 1
    before = home.sealed_rows(registered)
    served = len(requests_served(job / LOG))
    owner.send_signal(signal.SIGCONT)
    assert owner.wait(60) == 0  # it finds nothing left to do
    assert home.sealed_rows(registered) == before
    assert_whole(home, registered)
    state = home.status(registered)
    assert state["duplicates_discarded"] == 0
    in_flight = 10
    assert served <= 40 + in_flight
    assert len(requests_served(job / LOG)) <= at_freeze + served + in_flight


@pytest.mark.case("C47")
def test_leases_survive_whoever_coordinates(home: Home) -> None:
    """40 shards are leased when the coordinating process dies and plans again: no lease is lost, nothing fails."""
    make_job(home.jobs, records=200, shard_size=5, script={})
    registered = home.pinned()
    leases = home.deployment.ledger.leases
    held = [
        leases.claim(registered.job_version, owner=f"host:boot:{n}:1", lease_s=600, wanted=range(40)) for n in range(40)
    ]
    plan(home.deployment, home.deployment.ledger.plans.get(registered.job_version))
    assert home.status(registered)["shards"]["leased"] == 40
    for lease in held:
        assert lease is not None
        leases.renew(lease, lease_s=600)


@pytest.mark.case("C62")
def test_one_of_four_workers_is_killed_and_little_is_done_again(home: Home) -> None:
    """The job starts with one worker; of a killed one only the last flush and what was in flight are redone."""
    script = {"defaults": {"delay_s": 0.2}, "requests_log": LOG}
    job = make_job(home.jobs, records=1200, shard_size=100, script=script, engine={"sequences_max": 4})
    registered = home.pinned()
    first = start_worker(home, registered.job_version)
    wait_for("results of one worker alone", lambda: home.status(registered)["results"] > 0)
    others = [start_worker(home, registered.job_version) for _ in range(3)]
    wait_for("four workers", lambda: len(home.status(registered)["workers"]) == 4)
    wait_for("a good part", lambda: home.status(registered)["results"] > 440)
    first.kill()
    first.wait()
    for other in others:
        assert other.wait(120) == 0
    assert_whole(home, registered)
    again = len(requests_served(job / LOG)) - 1200
    flush_and_in_flight = 256 + 8
    assert 0 <= again <= flush_and_in_flight


@pytest.mark.case("C63", "D13")
@pytest.mark.parametrize("notice_s", [12.0, 3.0, 0.0])
def test_whatever_the_notice_the_rows_are_the_same(home: Home, notice_s: float) -> None:
    """A long, a short or no notice: handed back at once, or taken over; the same rows in the end. (Scaled by ten.)"""
    script = {"defaults": {"delay_s": 0.5}, "requests_log": LOG}
    job = make_job(
        home.jobs,
        records=120,
        shard_size=40,
        script=script,
        engine={"sequences_max": 8},
        drain_s=max(notice_s, 1) * 0.8,
    )
    registered = home.pinned()
    worker = start_worker(home, registered.job_version)
    wait_for("first results", lambda: home.status(registered)["results"] > 0)
    ended = None
    if notice_s:
        worker.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = worker.wait(notice_s)
    worker.kill()
    worker.wait()
    if ended is not None:
        assert ended == 75
        assert home.status(registered)["shards"]["leased"] == 0  # at once, not after its expiry
        assert home.status(registered)["results"] == len(requests_served(job / LOG))
    write_script(job, {"requests_log": LOG})
    work(home.deployment, registered)
    assert_whole(home, registered)
    rows = [
        {key: row[key] for key in ("record_id", "category", "summary", "entities", "acl")}
        for row in home.sealed_rows(registered)
    ]
    undisturbed = make_job(home.jobs, name="calm", records=120, shard_size=40, script={})
    calm, _ = home.worked("calm")
    assert undisturbed.is_dir()
    expected = [{key: row[key] for key in rows[0]} for row in home.sealed_rows(calm)]
    assert rows == expected


@pytest.mark.case("C74")
def test_workers_of_different_size_work_on_one_version(home: Home) -> None:
    """Engine tuning is no part of the version; each result says what computed it."""
    make_job(home.jobs, records=20, shard_size=10, script={}, engine={"sequences_max": 4})
    registered = home.pinned()
    work(home.deployment, registered, wanted=range(1))
    make_job(home.jobs, records=20, shard_size=10, script={}, engine={"sequences_max": 16})
    assert home.pinned().job_version == registered.job_version
    work(home.deployment, registered)
    engines = Counter(row["_engine"] for row in home.sealed_rows(registered))
    assert sorted(engines.values()) == [10, 10]


@pytest.mark.case("D05")
@pytest.mark.parametrize(
    "moment", ["claim.before_commit", "claim.after_commit", "reclaim.before_commit", "reclaim.after_commit"]
)
def test_a_process_killed_while_reclaiming_leaves_no_lock(home: Home, moment: str) -> None:
    """The next one proceeds: there is nothing to wait for but the lease."""
    make_job(home.jobs, records=20, shard_size=10, script={})
    registered = home.pinned()
    dead = start_worker(home, registered.job_version, failpoints="put.before_commit=kill")
    assert dead.wait(60) == -signal.SIGKILL
    start_worker(home, registered.job_version, failpoints=f"{moment}=kill").wait(60)
    work(home.deployment, registered)
    assert_whole(home, registered)


@pytest.mark.case("D09", "D14")
def test_a_record_may_take_many_lease_lengths(home: Home) -> None:
    """With renewals on, one claim lasts as long as it takes: the epoch does not move, the rows are one set."""
    make_job(
        home.jobs, records=6, shard_size=6, lease_s=1, renew_every_s=0.2,
        script={"requests_log": LOG, "records": {record_id(3): {"delay_s": 5.0}}},
    )  # fmt: skip
    registered, report = home.worked()
    (shard,) = home.deployment.ledger.progress.shards(registered.job_version)
    assert (shard.epoch, report.leases_lost) == (1, 0)
    assert_whole(home, registered)
    assert Counter(requests_served(home.jobs / "tiny" / LOG)) == Counter(record_id(n) for n in range(6))


@pytest.mark.case("D17")
def test_a_renewal_that_hangs_is_not_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease stops being trusted before it has run out, whether an answer comes or not."""
    hung = threading.Event()
    end = threading.Event()

    def hang(_leases: Leases, _lease: Lease, *, lease_s: float) -> None:
        hung.set()
        end.wait(30)

    monkeypatch.setattr(Leases, "renew", hang)
    lease = Lease(job_version="v", shard=0, epoch=1, owner="me", records=1)
    with Heartbeat(home.deployment.ledger.leases, lease_s=1.0, renew_every_s=0.1) as heartbeat:
        heartbeat.hold(lease, claimed_at=time.monotonic())
        assert hung.wait(10)
        wait_for("lost lease", lambda: heartbeat.lost() == [lease], timeout_s=5)
        end.set()


@pytest.mark.case("D18")
def test_an_engine_that_does_not_shut_down_keeps_nobody(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards are handed back first, then the shutdown is given up at its deadline."""
    monkeypatch.setattr("batch_assets.worker.engine_keeper.SHUTDOWN_S", 0.2)
    monkeypatch.setattr("batch_assets.worker.engine_keeper.SHUTDOWN_GRACE_S", 0.2)
    end = threading.Event()
    monkeypatch.setattr(ScriptedEngine, "shutdown", lambda _engine, _deadline_s: end.wait(300))
    make_job(home.jobs, records=4, shard_size=2, script={})
    registered, report = home.worked()
    end.set()
    assert report.engine_stuck
    assert_whole(home, registered)


@pytest.mark.case("D22")
def test_renewals_and_callbacks_share_the_ledger(home: Home) -> None:
    """A callback that reads and writes the ledger while leases are renewed at full speed: no deadlock."""
    make_job(home.jobs, records=40, shard_size=4, script={"defaults": {"delay_s": 0.05}}, lease_s=5, renew_every_s=0.01)
    registered = home.pinned()

    def touch(*_: Any) -> None:
        home.status(registered)
        home.deployment.ledger.plans.move_files(registered.job_version, {})

    work(home.deployment, registered, on_sealed=touch)
    assert_whole(home, registered)


@pytest.mark.case("D53")
def test_one_bad_record_and_a_crash_in_ten_thousand(home: Home) -> None:
    """An engine crash at half and one bad record: 9,999 results and one dead letter."""
    script = {"defaults": {"process": True}, "records": {record_id(777): {"text": "not JSON"}}}
    make_job(home.jobs, records=10_000, shard_size=1000, script=script)
    registered = home.pinned()
    killed: list[int] = []

    def kill_at_half() -> bool:
        if not killed and home.status(registered)["results"] >= 5000:
            killed.append(engine_process(home))
            os.kill(killed[0], signal.SIGKILL)
        return False

    report = work(home.deployment, registered, should_stop=kill_at_half)
    assert report.engine_restarts == 1
    assert_whole(home, registered, dead=1)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_s_clock_changes_nothing(home: Home, hours: int) -> None:
    """An hour slow or fast: leases and stored times are the database's, and no shard is taken from anybody."""
    make_job(home.jobs, records=20, shard_size=5, script={})
    registered = home.pinned()
    neighbour = home.deployment.ledger.leases.claim(
        registered.job_version, owner="neighbour", lease_s=600, wanted=range(1)
    )
    assert neighbour is not None
    shifted = (
        f"import time; real = time.time; time.time = lambda: real() + {hours} * 3600; "
        f"from batch_assets.operations.work import work; from batch_assets.cli.common import deployment; "
        f"here = deployment(); work(here, here.resolve('tiny'), wanted=range(1, 4))"
    )
    subprocess.run([sys.executable, "-c", shifted], env=environment(home), check=True, timeout=120)
    home.deployment.ledger.leases.renew(neighbour, lease_s=600)
    stored = home.deployment.ledger.outcomes.results_of_shard(registered.job_version, 1)
    assert [abs(one.stored_at - time.time()) < 600 for one in stored] == [True] * 5
    assert home.status(registered)["shards"]["completed"] == 3
