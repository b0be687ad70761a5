"""Each guard of the ledger is needed: without it a short scenario goes wrong, with it the scenario is fine.

What a guard is replaced by stands in `assets_tests/faults.py`. A guard that no scenario misses could be
lost in the next change without anybody noticing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from assets_tests.faults import FAULTS
from assets_tests.ledgers import LEASE_S, Clock, LedgerUnderTest, failure, result, small_version
from assets_tests.losing import holding, in_thread
from assets_tests.waiting import wait_for
from batch_assets.core.suspects import ShardTrial
from batch_assets.core.waste import Wasted
from batch_assets.errors import Fenced, ShardTrouble, StoreError
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put
from batch_assets.storage.publications import Publication
from batch_assets.storage.tables import outcomes

SQLITE, POSTGRESQL = "sqlite", "postgresql"


def refused(call: Callable[[], object], error: type[Exception] = Fenced) -> None:
    with contextlib.suppress(error):
        call()
        raise AssertionError("it was not refused")


# --- scenarios: each asserts what must hold ------------------------------------------------------


def a_zombie_of_the_same_name_is_refused(under: LedgerUnderTest) -> None:
    zombie = under.claim("w1")
    under.clock.now += LEASE_S + 1
    heir = under.claim("w1")
    assert heir.shard == zombie.shard
    refused(lambda: under.put(zombie, result("0")))
    refused(lambda: under.ledger.trials.save(zombie, ShardTrial(everyone=True)))
    assert not under.ledger.leases.release(zombie)
    refused(lambda: under.ledger.leases.renew(zombie, lease_s=LEASE_S))


def what_was_released_is_not_written_to(under: LedgerUnderTest) -> None:
    lease = under.claim()
    under.ledger.leases.release(lease)
    refused(lambda: under.put(lease, result("0")))


def an_expired_lease_is_not_revived(under: LedgerUnderTest) -> None:
    lease = under.claim()
    under.clock.now += LEASE_S + 1
    refused(lambda: under.ledger.leases.renew(lease, lease_s=LEASE_S))


def a_sealed_file_has_as_many_rows_as_there_are_results(under: LedgerUnderTest) -> None:
    lease = under.claim()
    under.answer_all(lease)
    refused(lambda: under.complete(lease, rows=3), ShardTrouble)


def counters_without_rows_complete_nothing(under: LedgerUnderTest) -> None:
    lease = under.claim()
    under.answer_all(lease)
    with under.ledger.database.write("test") as connection:
        connection.execute(sa.delete(outcomes).where(outcomes.c.record_id == "2"))
    refused(lambda: under.complete(lease), ShardTrouble)


def a_flush_sent_again_moves_no_counter(under: LedgerUnderTest) -> None:
    put = Put(lease=under.claim(), results=[result("0")], engine="e")
    for _ in range(2):
        assert under.ledger.outcomes.put(put).discarded == 0
    assert under.ledger.progress.of(under.version.id).duplicates_discarded == 0


def a_claim_sent_again_finds_its_lease(under: LedgerUnderTest) -> None:
    claim = under.ledger.leases.claim
    for _ in range(2):
        lease = claim(under.version.id, owner="w", lease_s=LEASE_S, wanted=range(3), claim_id="c")
        assert lease is not None
        assert lease.shard == 0
    assert under.states() == ["leased", "pending", "pending"]


def no_epoch_moves_while_a_flush_is_written(under: LedgerUnderTest) -> None:
    lease = under.claim()
    with standing_before(under.ledger, "INSERT INTO outcomes") as place:
        putting = in_thread(lambda: under.put(lease, result("0")))
        assert place.reached.wait(60)
        under.clock.now += LEASE_S + 1
        heir = under.claim("w2")
        place.may_go.set()
        putting.result(60)
    assert heir.shard != lease.shard, "the shard was given away under a flush that then was stored"


def a_flush_succeeds_whoever_else_writes(under: LedgerUnderTest) -> None:
    lease = under.claim()
    with under.ledger.database.read() as connection:
        path = str(connection.engine.url.database)
    with standing_before(under.ledger, "INSERT INTO outcomes") as place:
        putting = in_thread(lambda: under.put(lease, result("0")))
        assert place.reached.wait(60)
        other = sqlite3.connect(path, timeout=0)
        with contextlib.closing(other), contextlib.suppress(sqlite3.OperationalError):  # locked: it would wait
            other.execute("UPDATE shards SET trouble = 'somebody was here' WHERE shard = 2")
            other.commit()
        place.may_go.set()
        assert putting.result(60).stored == 1


def a_cancelled_version_has_no_open_shards(under: LedgerUnderTest) -> None:
    version = small_version(prompt="other")
    under.ledger.plans.register(version, file_sha256="g")
    with holding("plan.before_commit") as held:
        planning = in_thread(lambda: under.ledger.plans.write_plan(version, ()))
        assert held.reached.wait(60)
        cancelling = in_thread(lambda: under.ledger.interventions.cancel(version.id))
        wait_for("somebody who waits for a lock", lambda: locks_waited_for(under), timeout_s=10)
        held.may_go.set()
        planning.result(60)
        cancelling.result(60)
    assert under.ledger.leases.outstanding(version.id, range(3)) == 0


def locks_waited_for(under: LedgerUnderTest) -> int:
    with under.ledger.database.read() as connection:
        return int(connection.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")) or 0)


@dataclass
class Place:
    reached: threading.Event
    may_go: threading.Event


@contextmanager
def standing_before(ledger: Ledger, words: str) -> Iterator[Place]:
    """The first statement with these words stands still, inside of its transaction, until it may go."""
    place = Place(threading.Event(), threading.Event())

    def stand(_connection: Any, _cursor: Any, statement: str, *_other: Any) -> None:
        if statement.startswith(words) and not place.reached.is_set():
            place.reached.set()
            place.may_go.wait(60)

    with listening(ledger, stand):
        try:
            yield place
        finally:
            place.may_go.set()


@contextmanager
def listening(ledger: Ledger, hear: Callable[..., None]) -> Iterator[None]:
    """`hear` is told of every statement before it is sent."""
    with ledger.database.write("test") as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", hear)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", hear)


BOTH = (SQLITE, POSTGRESQL)
SCENARIOS: list[tuple[str, Callable[[LedgerUnderTest], None], tuple[str, ...]]] = [
    ("epoch", a_zombie_of_the_same_name_is_refused, BOTH),
    ("owner and state", what_was_released_is_not_written_to, BOTH),
    ("expiry", an_expired_lease_is_not_revived, BOTH),
    ("whole", a_sealed_file_has_as_many_rows_as_there_are_results, BOTH),
    ("whole", counters_without_rows_complete_nothing, BOTH),
    ("put_id", a_flush_sent_again_moves_no_counter, BOTH),
    ("claim_id", a_claim_sent_again_finds_its_lease, BOTH),
    ("row lock", no_epoch_moves_while_a_flush_is_written, (POSTGRESQL,)),
    ("version lock", a_cancelled_version_has_no_open_shards, (POSTGRESQL,)),
    ("immediate", a_flush_succeeds_whoever_else_writes, (SQLITE,)),
]
CASES = [
    pytest.param(guard, scenario, database, id=f"{guard}-{scenario.__name__}-{database}")
    for guard, scenario, databases in SCENARIOS
    for database in databases
]


@pytest.fixture
def open_ledger(ledger_url: str) -> Iterator[Callable[[], LedgerUnderTest]]:
    opened: list[LedgerUnderTest] = []

    def open_() -> LedgerUnderTest:
        clock = Clock()
        opened.append(LedgerUnderTest(Ledger(ledger_url, clock=clock), clock))
        return opened[-1]

    yield open_
    for one in opened:
        one.ledger.close()


@pytest.mark.case("D43")
@pytest.mark.parametrize("with_guard", [True, False], ids=["with", "without"])
@pytest.mark.parametrize(("guard", "scenario", "ledger_url"), CASES, indirect=["ledger_url"])
def test_a_scenario_needs_its_guard(
    open_ledger: Callable[[], LedgerUnderTest],
    guard: str,
    scenario: Callable[[LedgerUnderTest], None],
    with_guard: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fine with the guard; wrong without it."""
    if with_guard:
        scenario(open_ledger())
        return
    FAULTS[guard](monkeypatch)
    under = open_ledger()
    with pytest.raises((AssertionError, sa.exc.IntegrityError, StoreError)):
        scenario(under)


@pytest.mark.parametrize("guard", ["owner", "state"])
def test_owner_and_state_stand_in_for_each_other(
    ledger: LedgerUnderTest, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only leased shards have an owner, a rule of the database: either comparison alone is enough."""
    FAULTS[guard](monkeypatch)
    what_was_released_is_not_written_to(ledger)


def test_every_fault_has_a_scenario() -> None:
    """A guard that is known is a guard that is tried."""
    assert FAULTS.keys() == {guard for guard, _, _ in SCENARIOS} | {"owner", "state"}


# --- guards that are settings --------------------------------------------------------------------


@pytest.mark.case("D48")
def test_no_write_begins_deferred(ledger: LedgerUnderTest) -> None:
    """D48: on SQLite every transaction takes the write lock first, and nothing is written outside of one."""
    if ledger.ledger.database.is_postgresql:
        pytest.skip("PostgreSQL locks rows")
    heard: list[str] = []

    def hear(connection: Any, _cursor: Any, statement: str, *_other: Any) -> None:
        heard.append(statement.split(" ")[0])
        if statement.startswith("BEGIN"):
            assert statement == "BEGIN IMMEDIATE"
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            assert connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT", statement

    with listening(ledger.ledger, hear):
        live_a_life(ledger)
    assert {"BEGIN", "INSERT", "UPDATE", "DELETE", "SELECT"} <= set(heard)


def live_a_life(under: LedgerUnderTest) -> None:
    """Every verb once."""
    doing, version = under.ledger.interventions, under.version.id
    other = small_version(prompt="other")
    under.ledger.plans.register(other, file_sha256="g")
    under.ledger.plans.write_plan(other, ())
    under.ledger.plans.move_files(version, {})
    lease = under.claim()
    under.ledger.leases.renew(lease, lease_s=LEASE_S)
    under.ledger.trials.save(lease, ShardTrial(everyone=True, running=True))
    under.ledger.waste.record(lease, {"timeout": Wasted(1, 1, 1)})
    under.ledger.leases.release(lease, trouble="t", recoveries_max=1)
    doing.requeue(version, [0])
    under.claim("dead")
    under.ledger.leases.reclaim_dead(version, lambda owner: owner == "dead")
    under.put(under.claim(), failure("0", attempt=3))
    doing.retry_dead_letters(version, "invalid_output", who="me")
    while found := under.try_claim():
        under.answer_all(found)
        under.complete(found)
    under.ledger.publications.move(
        Publication(publication_id="p", job="tickets", kind="publish", from_version=None, to_version=version,
                    who="me", verdicts={})
    )  # fmt: skip
    doing.cancel(other.id)
    doing.retire(other.id, forget=True)
    doing.forget(other.id)


def test_what_was_committed_is_on_the_disk(ledger: LedgerUnderTest) -> None:
    """Neither database is told to answer before the disk has it."""
    with ledger.ledger.database.read() as connection:
        if ledger.ledger.database.is_postgresql:
            assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"
        else:
            assert connection.scalar(sa.text("PRAGMA synchronous")) == 2
            assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"
