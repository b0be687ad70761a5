"""Workers that end without notice, freeze, race or come back; and the clock they are judged by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from assets_tests import invariants
from assets_tests.ledgers import LEASE_S, Clock, LedgerUnderTest, failure, result, small_version
from assets_tests.losing import AFTER, BEFORE, holding, in_thread, losing
from batch_assets.core.leases import Lease
from batch_assets.core.suspects import ShardTrial
from batch_assets.core.waste import Wasted
from batch_assets.errors import Fenced, StoreError
from batch_assets.storage.leases import RECOVERIES_MAX
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import outcomes, shards


def row_of(under: LedgerUnderTest, shard: int = 0) -> Any:
    with under.ledger.database.read() as connection:
        query = sa.select(shards).where(shards.c.job_version == under.version.id, shards.c.shard == shard)
        return connection.execute(query).one()


def lose(under: LedgerUnderTest, owner: str = "w1", *stored: str) -> Lease:
    """A worker claims shard 0, stores some results and is never heard of again."""
    lease = under.claim(owner, wanted=range(1))
    if stored:
        under.put(lease, *map(result, stored))
    under.clock.now += LEASE_S + 1
    return lease


def planned(under: LedgerUnderTest, *, records: int, shard_size: int = 1) -> str:
    """Another version, planned; returns its id."""
    version = small_version(records=records, shard_size=shard_size, prompt=f"{records} in {shard_size}")
    under.ledger.plans.register(version, file_sha256="r")
    under.ledger.plans.write_plan(version, ())
    return version.id


# --- how often a shard is tried again ------------------------------------------------------------


@pytest.mark.case("C51")
def test_workers_lost_at_the_same_point_call_for_an_operator(ledger: LedgerUnderTest) -> None:
    """C51: recoveries are bounded; the operator is told who was lost last, and at which epoch."""
    for number in range(RECOVERIES_MAX):
        assert lose(ledger, f"w{number}").recoveries == number
    assert ledger.try_claim(wanted=range(1)) is None
    row = row_of(ledger)
    assert (row.state, row.recoveries) == ("needs_operator", RECOVERIES_MAX)
    assert row.trouble == f"worker w{RECOVERIES_MAX - 1} (epoch {RECOVERIES_MAX}) was lost without notice"
    assert ledger.claim().shard == 1  # the others go on


def test_progress_starts_the_count_anew(ledger: LedgerUnderTest) -> None:
    """A worker that has stored something before it was lost counts as the first."""
    for _ in range(3):
        lose(ledger)
    lose(ledger, "w2", "0")
    assert ledger.claim("w3", wanted=range(1)).recoveries == 1


def test_dead_letters_are_progress(ledger: LedgerUnderTest) -> None:
    """A shard whose records end as dead letters gets on as well."""
    lose(ledger)
    lease = ledger.claim("w2")
    ledger.put(lease, failure("0", attempt=3))
    ledger.clock.now += LEASE_S + 1
    assert ledger.claim("w3").recoveries == 1


def test_a_discarded_second_result_is_no_progress(ledger: LedgerUnderTest) -> None:
    """What somebody else had stored already does not count."""
    lose(ledger, "w1", "0")
    lose(ledger, "w2", "0")
    assert ledger.claim("w3").recoveries == 2


def test_a_release_with_trouble_counts_and_is_told(ledger: LedgerUnderTest) -> None:
    """A worker that gives the shard back because it cannot get on counts like one that was lost."""
    release = ledger.ledger.leases.release
    for number in range(RECOVERIES_MAX):
        assert release(ledger.claim(wanted=range(1)), trouble=f"no GPU memory, try {number}\x00")
    row = row_of(ledger)
    assert (row.state, row.trouble) == ("needs_operator", f"no GPU memory, try {RECOVERIES_MAX - 1}\\x00")


def test_a_clean_release_does_not_count(ledger: LedgerUnderTest) -> None:
    """Preemption is nobody's fault, however often; and it does not hide that workers were lost before."""
    lose(ledger)
    for _ in range(2 * RECOVERIES_MAX):
        lease = ledger.claim(wanted=range(1))
        assert lease.recoveries == 1
        assert ledger.ledger.leases.release(lease)


def test_a_clean_release_after_progress_ends_the_row(ledger: LedgerUnderTest) -> None:
    """Lost workers are counted in a row, and this one got on."""
    for _ in range(RECOVERIES_MAX - 1):
        lose(ledger)
    lease = ledger.claim("w2")
    ledger.put(lease, result("0"))
    ledger.ledger.leases.release(lease)
    assert ledger.claim("w3").recoveries == 0


def test_owners_known_to_be_dead_count_as_lost(ledger: LedgerUnderTest) -> None:
    """However it becomes known that a worker is gone, its shard is tried a bounded number of times."""
    for _ in range(RECOVERIES_MAX):
        ledger.claim("dead", wanted=range(1))
        assert ledger.ledger.leases.reclaim_dead(ledger.version.id, lambda owner: owner == "dead") == 1
    assert row_of(ledger).state == "needs_operator"


# --- suspects and waste --------------------------------------------------------------------------


def test_suspects_outlive_the_worker(ledger: LedgerUnderTest) -> None:
    """The next worker finds who was on trial; after a release with notice nobody was."""
    trial = ShardTrial(groups=(("0",), ("1", "\x00")), everyone=True, running=True)
    ledger.ledger.trials.save(ledger.claim(wanted=range(1)), trial)
    ledger.clock.now += LEASE_S + 1
    heir = ledger.claim("w2", wanted=range(1))
    assert ledger.ledger.trials.of(heir) == trial
    ledger.ledger.leases.release(heir)
    assert ledger.ledger.trials.of(heir) == ShardTrial(groups=trial.groups, everyone=True)


def test_a_trial_that_runs_is_a_way_of_getting_on(ledger: LedgerUnderTest) -> None:
    """Workers lost while suspects are narrowed down do not call for an operator."""
    for _ in range(3):
        lose(ledger)
    lease = ledger.claim()
    ledger.ledger.trials.save(lease, ShardTrial(groups=(("0",),), running=True))
    ledger.clock.now += LEASE_S + 1
    assert ledger.claim("w2").recoveries == 1


def test_a_zombie_accuses_nobody(ledger: LedgerUnderTest) -> None:
    """Suspects are fenced like results: a superseded worker changes none."""
    zombie = lose(ledger)
    heir = ledger.claim("w1")
    ledger.ledger.trials.save(heir, ShardTrial(groups=(("1",),)))
    for trial in (ShardTrial(), ShardTrial(groups=(("0",),), running=True)):
        with pytest.raises(Fenced):
            ledger.ledger.trials.save(zombie, trial)
    assert ledger.ledger.trials.of(heir) == ShardTrial(groups=(("1",),))
    assert row_of(ledger).recoveries == 1


def test_suspects_end_with_the_shard(ledger: LedgerUnderTest) -> None:
    """A completed shard has no trial any more."""
    lease = ledger.claim()
    ledger.ledger.trials.save(lease, ShardTrial(groups=(("0",),), running=True))
    ledger.answer_all(lease)
    ledger.complete(lease)
    assert not ledger.ledger.trials.of(lease)


def test_waste_is_replaced_within_a_lease_and_added_over_leases(ledger: LedgerUnderTest) -> None:
    """A lease reports its totals so far: saying them again, or saying more, does not add up."""
    book = ledger.ledger.waste
    first = ledger.claim()
    book.record(first, {"timeout": Wasted(1, 10, 2)})
    book.record(first, {"timeout": Wasted(3, 30, 6), "preempted": Wasted(1, 7, 0)})
    book.record(first, {"timeout": Wasted(3, 30, 6)})
    ledger.ledger.leases.release(first)
    book.record(ledger.claim(), {"timeout": Wasted(2, 20, 4)})
    assert book.of(ledger.version.id) == {"timeout": Wasted(5, 50, 10), "preempted": Wasted(1, 7, 0)}


# --- races ---------------------------------------------------------------------------------------


@pytest.mark.case("D01")
def test_a_shard_completed_while_the_reclaimer_looks_stays_completed(ledger: LedgerUnderTest) -> None:
    """D01: the reclaimer has found an expired lease; its owner completes; no row is changed by the reclaimer."""
    lease = ledger.claim()
    ledger.answer_all(lease)
    ledger.clock.now += LEASE_S + 1
    with holding("complete.before_commit") as held:
        completing = in_thread(lambda: ledger.complete(lease))
        assert held.reached.wait(60)
        reclaiming = in_thread(lambda: ledger.ledger.leases.reclaim_dead(ledger.version.id, lambda owner: True))
        if ledger.ledger.database.is_postgresql:
            assert reclaiming.result(60) == 0  # passed over: the owner is writing, so it is alive
        held.may_go.set()
        completing.result(60)
    assert reclaiming.result(60) == 0
    assert ledger.claim("w2").shard == 1
    assert ledger.states()[0] == "completed"


@pytest.mark.case("D06")
def test_a_thousand_completions_race_with_the_reclaimer(ledger: LedgerUnderTest) -> None:
    """D06: exactly one of the two happens, each time."""
    races = 1000
    version = planned(ledger, records=races)
    expired = ledger.clock.now - 1
    lease_all = "UPDATE shards SET state = 'leased', epoch = 1, owner = 'a', lease_expires_at = {}, results = 1 "
    with ledger.ledger.database.write("test") as connection:
        connection.exec_driver_sql(lease_all.format(expired) + f"WHERE job_version = '{version}'")
        row = {"job_version": version, "kind": "result", "attempt": 1, "payload": "{}", "engine": "e", "worker": "a",
               "epoch": 1, "prompt_tokens": 1, "output_tokens": 1, "stored_at": 1.0}  # fmt: skip
        rows = [{**row, "shard": shard, "record_id": str(shard)} for shard in range(races)]
        connection.execute(sa.insert(outcomes), rows)
    barrier = threading.Barrier(2)
    won: list[set[str]] = [set() for _ in range(races)]

    def complete() -> None:
        for shard in range(races):
            lease = Lease(job_version=version, shard=shard, epoch=1, owner="a", records=1)
            barrier.wait(60)
            try:
                ledger.ledger.leases.complete(lease, SealedFile(key="k", sha256="x", size=1, rows=1))
                won[shard].add("completed")
            except Fenced:
                pass

    def reclaim() -> None:
        for shard in range(races):
            barrier.wait(60)
            wanted = range(shard, shard + 1)
            if ledger.ledger.leases.claim(version, owner="b", lease_s=LEASE_S, wanted=wanted):
                won[shard].add("reclaimed")

    for future in [in_thread(complete), in_thread(reclaim)]:
        future.result(120)
    by_end = {"completed": 0, "reclaimed": 0}
    for shard in ledger.ledger.progress.shards(version):
        end = {"completed": "completed", "leased": "reclaimed"}.get(shard.state)
        # On PostgreSQL a claim passes over a row that is being completed, even if that then fails.
        assert end is not None
        assert won[shard.shard] == {end}
        by_end[end] += 1
    invariants.check(ledger.ledger, version)
    assert sum(by_end.values()) == races


@pytest.mark.case("D07")
def test_a_claim_in_flight_while_its_worker_drains(ledger: LedgerUnderTest) -> None:
    """D07: everything was released, then the late claim is committed, unheard: it expires, and is never stuck."""
    release = ledger.ledger.leases.release
    mine = ledger.claim("w1")
    with holding("claim.before_commit") as held:
        late = in_thread(lambda: ledger.claim("w1"))
        assert held.reached.wait(60)
        releasing = in_thread(lambda: release(mine))
        held.may_go.set()
        unheard = late.result(60)
        assert releasing.result(60)
    assert ledger.states().count("leased") == 1
    ledger.clock.now += LEASE_S + 1
    assert {ledger.claim("w2").shard for _ in range(3)} == {0, 1, 2}
    assert not release(unheard)


def test_a_late_claim_can_be_found_and_released(ledger: LedgerUnderTest) -> None:
    """D07: with its id, a claim whose answer was lost is found again, and handed back at once."""
    claim = {"owner": "w1", "lease_s": LEASE_S, "wanted": range(3), "claim_id": "c"}
    with losing(f"claim.{AFTER}"), pytest.raises(StoreError):
        ledger.ledger.leases.claim(ledger.version.id, **claim)  # type: ignore[arg-type]
    lease = ledger.ledger.leases.claim(ledger.version.id, **claim)  # type: ignore[arg-type]
    assert lease is not None
    assert ledger.states() == ["leased", "pending", "pending"]
    assert ledger.ledger.leases.release(lease)
    assert ledger.states() == ["pending"] * 3


@pytest.mark.case("C49")
def test_three_workers_race_for_expired_shards(ledger: LedgerUnderTest) -> None:
    """C49: shards are taken back and given away at once; each has one live lease, lost once, claimed twice."""
    version = planned(ledger, records=60)
    claim = ledger.ledger.leases.claim
    while claim(version, owner="lost", lease_s=LEASE_S, wanted=range(60)):
        pass
    ledger.clock.now += LEASE_S + 1
    taken: dict[str, list[Lease]] = {"w1": [], "w2": [], "w3": []}

    def take(owner: str) -> None:
        while len(taken["w1"]) + len(taken["w2"]) + len(taken["w3"]) < 60:
            if lease := claim(version, owner=owner, lease_s=LEASE_S, wanted=range(60)):
                taken[owner].append(lease)

    for future in [in_thread(lambda owner=owner: take(owner)) for owner in taken]:
        future.result(60)
    leases = [lease for all_ in taken.values() for lease in all_]
    assert sorted(lease.shard for lease in leases) == list(range(60))
    assert {(lease.epoch, lease.recoveries) for lease in leases} == {(2, 1)}
    owners = {row.shard: row.owner for row in ledger.ledger.progress.shards(version)}
    assert owners == {lease.shard: lease.owner for lease in leases}


@pytest.mark.case("D26")
def test_a_flush_delayed_until_its_worker_holds_the_next_epoch(ledger: LedgerUnderTest) -> None:
    """D26: on its way while the same worker lost the shard and claimed it again; refused all the same."""
    if not ledger.ledger.database.is_postgresql:
        pytest.skip("a SQLite transaction that has begun keeps all other writers out")
    lease = ledger.claim()
    reached, may_go = threading.Event(), threading.Event()
    with delaying(ledger.ledger, "FOR UPDATE", reached, may_go):
        putting = in_thread(lambda: ledger.put(lease, result("0")))
        assert reached.wait(60)
        ledger.clock.now += LEASE_S + 1
        heir = ledger.claim(lease.owner, wanted=range(1))
        may_go.set()
        with pytest.raises(Fenced):
            putting.result(60)
    assert (heir.shard, heir.epoch) == (lease.shard, lease.epoch + 1)
    assert ledger.ledger.outcomes.settled_ids(ledger.version.id, 0) == set()


@contextmanager
def delaying(ledger: Ledger, words: str, reached: threading.Event, may_go: threading.Event) -> Iterator[None]:
    """The first statement with these words is not sent before it may go."""
    with ledger.database.write("test") as connection:
        engine = connection.engine

    def wait(_connection: Any, _cursor: Any, statement: str, *_other: Any) -> None:
        if statement.rstrip().endswith(words) and not reached.is_set():
            reached.set()
            may_go.wait(60)

    event.listen(engine, "before_cursor_execute", wait)
    try:
        yield
    finally:
        may_go.set()
        event.remove(engine, "before_cursor_execute", wait)


def test_a_frozen_transaction_stops_nobody_else(ledger: LedgerUnderTest) -> None:
    """A worker that froze inside of a transaction keeps its row locked; others claim, flush and complete."""
    if not ledger.ledger.database.is_postgresql:
        pytest.skip("SQLite has one writer")
    frozen, alive = ledger.claim("frozen"), ledger.claim("w2")
    with ledger.ledger.database.read() as connection:
        url = connection.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    with psycopg.connect(url) as holder:
        holder.execute("SELECT * FROM shards WHERE shard = 0 FOR UPDATE")
        ledger.answer_all(alive)
        ledger.complete(alive)
        ledger.clock.now += LEASE_S + 1
        assert ledger.claim("w3").shard == 2  # shard 0 has expired, and is passed over
        assert ledger.try_claim("w3") is None
    heir = ledger.claim("w3")
    assert (heir.shard, heir.recoveries) == (frozen.shard, 1)


# --- time and epochs -----------------------------------------------------------------------------


@pytest.mark.case("D10")
def test_a_renewal_that_comes_too_late(ledger: LedgerUnderTest) -> None:
    """D10: the old holder is told at its next call, and none of its later writes count."""
    late = ledger.claim()
    ledger.clock.now += LEASE_S * 1.5
    heir = ledger.claim("w2", wanted=range(1))
    for call in (
        lambda: ledger.ledger.leases.renew(late, lease_s=LEASE_S),
        lambda: ledger.put(late, result("0")),
        lambda: ledger.complete(late),
    ):
        with pytest.raises(Fenced):
            call()
    assert not ledger.ledger.leases.release(late)
    assert ledger.ledger.outcomes.settled_ids(ledger.version.id, 0) == set()
    ledger.ledger.leases.renew(heir, lease_s=LEASE_S)


@pytest.mark.case("D23")
def test_no_live_lease_is_taken_in_the_same_tick(ledger: LedgerUnderTest) -> None:
    """D23: not at the moment of its claim, not at the last moment of the lease; after it, yes."""
    lease = ledger.claim(wanted=range(1))
    assert ledger.try_claim("w2", wanted=range(1)) is None
    ledger.clock.now += LEASE_S
    assert ledger.try_claim("w2", wanted=range(1)) is None
    ledger.ledger.leases.renew(lease, lease_s=LEASE_S)
    ledger.clock.now += LEASE_S + 1e-3
    assert ledger.claim("w2", wanted=range(1)).epoch == 2


@pytest.mark.case("D25")
def test_the_epoch_moves_only_with_a_committed_claim(ledger: LedgerUnderTest) -> None:
    """D25: claims that find nothing, or are rolled back, use up no epoch."""
    for _ in range(50):
        with losing(f"claim.{BEFORE}"), pytest.raises(StoreError):
            ledger.claim()
    assert ledger.claim().epoch == 1
    for _ in range(50):
        assert ledger.try_claim(wanted=range(1)) is None
    assert row_of(ledger).epoch == 1


@pytest.mark.case("D25")
def test_epochs_have_64_bits(ledger: LedgerUnderTest) -> None:
    """D25: however many claims there have been, the next one is told from them."""
    with ledger.ledger.database.write("test") as connection:
        on = " ON shards" if ledger.ledger.database.is_postgresql else ""
        connection.exec_driver_sql(f"DROP TRIGGER shards_begin_pending{on}")
        connection.execute(sa.insert(shards).values(job_version=ledger.version.id, shard=9, records=1, epoch=2**62))
    lease = ledger.claim(wanted=range(9, 10))
    assert lease.epoch == 2**62 + 1
    ledger.put(lease, result("x"))
    ledger.clock.now += LEASE_S + 1
    ledger.claim("w2", wanted=range(9, 10))
    with pytest.raises(Fenced):
        ledger.complete(lease)


@pytest.mark.case("D29")
@pytest.mark.parametrize("start", [0.0, 90 * 86_400.0, 2**53 / 1e9, 4e9])
def test_lease_arithmetic_holds_at_any_time(ledger: LedgerUnderTest, start: float) -> None:
    """D29: at second 0, after 90 days, where nanoseconds leave the exact range, and in the far future."""
    ledger.clock.now = start
    version = planned(ledger, records=2)
    lease = ledger.ledger.leases.claim(version, owner="w", lease_s=0.5, wanted=range(1))
    assert lease is not None
    ledger.ledger.outcomes.put(Put(lease=lease, results=[result("0")], engine="e"))
    ledger.clock.now = start + 0.5
    ledger.ledger.leases.renew(lease, lease_s=0.25)
    ledger.clock.now = start + 0.75 + 1e-3
    with pytest.raises(Fenced):
        ledger.ledger.leases.renew(lease, lease_s=0.25)
    heir = ledger.ledger.leases.claim(version, owner="w2", lease_s=0.5, wanted=range(1))
    assert heir is not None
    assert (heir.epoch, heir.recoveries) == (2, 1)


def test_the_database_clock_is_the_real_time(ledger_url: str) -> None:
    """Leases are measured by the database: a lease in the past has expired, one in the future has not."""
    under = LedgerUnderTest(Ledger(ledger_url), Clock())
    leases = under.ledger.leases
    gone = leases.claim(under.version.id, owner="w1", lease_s=-1.0, wanted=range(1))
    assert gone is not None
    with pytest.raises(Fenced):
        leases.renew(gone, lease_s=60.0)
    heir = leases.claim(under.version.id, owner="w2", lease_s=60.0, wanted=range(1))
    assert heir is not None
    assert heir.epoch == 2
    leases.renew(heir, lease_s=60.0)
    under.ledger.close()


@pytest.mark.case("C47")
def test_leases_outlive_the_process_that_hands_them_out(ledger_url: str) -> None:
    """C47: the ledger is closed and opened again while 40 shards are leased; every lease goes on."""
    clock = Clock()
    under = LedgerUnderTest(Ledger(ledger_url, clock=clock), clock, small_version(records=40, shard_size=1))
    leases = [under.claim(f"w{number % 3}") for number in range(40)]
    under.ledger.close()
    again = Ledger(ledger_url, clock=clock)
    for lease in leases:
        again.leases.renew(lease, lease_s=LEASE_S)
        again.outcomes.put(Put(lease=lease, results=[result(str(lease.shard))], engine="e"))
    assert again.progress.of(under.version.id).results == 40
    again.close()


def test_a_worker_that_is_heard_of_again_clears_the_record_on_trial(ledger: LedgerUnderTest) -> None:
    """Before anybody has taken the shard over, nothing is counted; afterwards the loss is taken back."""
    trials = ledger.ledger.trials
    first = ledger.claim("w1")
    alone = ShardTrial(groups=(("0",),), running=True)
    trials.save(first, alone)
    ledger.clock.now += LEASE_S + 1
    trials.seen_alive(first)
    second = ledger.claim("w2")
    assert trials.of(second) == ShardTrial(groups=(("0",),))
    trials.save(second, ShardTrial(groups=(("0",),), running=True, losses=1))
    trials.seen_alive(first)
    assert trials.of(second).losses == 0
    trials.seen_alive(first)
    assert trials.of(second) == ShardTrial(groups=(("0",),), running=True)


def test_only_a_death_that_is_known_is_told_as_one(ledger: LedgerUnderTest) -> None:
    """A dead process, one that left in good order, and one that is only silent are three different things."""
    trials, leases = ledger.ledger.trials, ledger.ledger.leases
    alone = ShardTrial(groups=(("0",),), running=True)
    for owner, has_left, expected in (("dead", False, "died"), ("left", True, "waits"), ("silent", False, "running")):
        lease = ledger.claim(owner, wanted=range(1))
        trials.save(lease, alone)
        if owner == "silent":
            ledger.clock.now += LEASE_S + 1
        else:
            leases.reclaim_dead(ledger.version.id, lambda _owner: True, has_left=lambda _owner, left=has_left: left)
        heir = ledger.claim("heir", wanted=range(1))
        found = trials.of(heir)
        assert ("died" if found.died else "running" if found.running else "waits") == expected
        leases.release(heir)
