"""What an operator does: requeue, cancel, put dead letters back, publish, retire, forget.

Each can be done twice. Whatever races with a worker or with another operator ends as if one had come
after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from assets_tests import invariants
from assets_tests.ledgers import LedgerUnderTest, failure, result, small_version
from assets_tests.losing import AFTER, holding, in_thread, losing
from assets_tests.waiting import wait_for
from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Reason
from batch_assets.errors import BatchAssetsError, Fenced, GateError, StoreError, VersionError
from batch_assets.storage.interventions import Retried
from batch_assets.storage.outcomes import Put
from batch_assets.storage.publications import Publication
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import failures, metadata, outcomes, shards, versions


def finish(under: LedgerUnderTest, *dead: str, reason: Reason = Reason.INVALID_OUTPUT) -> None:
    """Complete every shard; the named records end as dead letters after three attempts."""
    while lease := under.try_claim():
        first = lease.shard * under.version.shard_size
        ids = [str(row) for row in range(first, first + lease.records)]
        for record in ids:
            if record in dead:
                under.put(lease, *(failure(record, attempt=n, reason=reason) for n in (1, 2, 3)))
            else:
                under.put(lease, result(record))
        under.complete(lease, rows=sum(record not in dead for record in ids))


def publication(to: str, *, before: str | None = None, publication_id: str = "p", job: str = "tickets") -> Publication:
    return Publication(
        publication_id=publication_id,
        job=job,
        kind="publish",
        from_version=before,
        to_version=to,
        who="me",
        verdicts={},
    )


def everything(under: LedgerUnderTest) -> dict[str, list[tuple[Any, ...]]]:
    with under.ledger.database.read() as connection:
        return {
            name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key))]
            for name, table in metadata.tables.items()
        }


def rows_of(under: LedgerUnderTest, table: sa.Table) -> list[Any]:
    with under.ledger.database.read() as connection:
        query = sa.select(table).where(table.c.job_version == under.version.id).order_by(*table.primary_key)
        return list(connection.execute(query))


def partitions(under: LedgerUnderTest) -> int:
    """How many partitions hang on the tables, on PostgreSQL."""
    with under.ledger.database.read() as connection:
        count = "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhparent WHERE relkind = 'p'"
        return int(connection.scalar(sa.text(count)) or 0)


# --- requeue and cancel --------------------------------------------------------------------------


def test_requeue_frees_only_what_waits_for_an_operator(ledger: LedgerUnderTest) -> None:
    """A freed shard starts its count of lost workers anew; shards in other states stay as they are."""
    stuck, leased = ledger.claim(), ledger.claim("w2")
    ledger.ledger.leases.release(stuck, trouble="the engine does not start", recoveries_max=1)
    found = ledger.ledger.interventions.requeue(ledger.version.id, [0, 1, 2])
    assert found == {0: "needs_operator", 1: "leased", 2: "pending"}
    assert ledger.states() == ["pending", "leased", "pending"]
    ledger.put(leased, result("4"))
    again = ledger.claim()
    assert (again.shard, again.recoveries) == (0, 0)
    assert rows_of(ledger, shards)[0].trouble is None


def test_requeue_of_an_unknown_shard_changes_nothing(ledger: LedgerUnderTest) -> None:
    """All or nothing: one wrong number leaves the others as they were."""
    ledger.ledger.leases.release(ledger.claim(), trouble="t", recoveries_max=1)
    before = everything(ledger)
    with pytest.raises(VersionError, match="no shard 7"):
        ledger.ledger.interventions.requeue(ledger.version.id, [0, 7])
    assert everything(ledger) == before


def test_cancel_ends_open_shards_and_keeps_completed_ones(ledger: LedgerUnderTest) -> None:
    """The worker on a shard is fenced, nothing can be claimed, and cancelling again changes nothing."""
    first = ledger.claim()
    ledger.answer_all(first)
    ledger.complete(first)
    second = ledger.claim()
    cancel = ledger.ledger.interventions.cancel
    assert cancel(ledger.version.id) == {"completed": 1, "cancelled": 2}
    before = everything(ledger)
    assert cancel(ledger.version.id) == {"completed": 1, "cancelled": 2}
    with pytest.raises(Fenced):
        ledger.put(second, result("4"))
    assert ledger.try_claim() is None
    assert everything(ledger) == before
    assert ledger.ledger.plans.get(ledger.version.id).cancelled


def test_a_finished_version_is_not_cancelled(ledger: LedgerUnderTest) -> None:
    """There is nothing to withdraw: it can still be published."""
    finish(ledger)
    assert ledger.ledger.interventions.cancel(ledger.version.id) == {"completed": 3}
    assert not ledger.ledger.plans.get(ledger.version.id).cancelled


def test_cancel_during_planning_leaves_no_shard_open(ledger: LedgerUnderTest) -> None:
    """Planned first and cancelled then, or the other way round: never shards of a cancelled version."""
    version = small_version(prompt="other")
    ledger.ledger.plans.register(version, file_sha256="g")
    with holding("plan.before_commit") as held:
        planning = in_thread(lambda: ledger.ledger.plans.write_plan(version, ()))
        assert held.reached.wait(60)
        cancelling = in_thread(lambda: ledger.ledger.interventions.cancel(version.id))
        wait_until_blocked(ledger)
        held.may_go.set()
        planning.result(60)
    assert cancelling.result(60) == {"cancelled": 3}
    assert ledger.ledger.leases.outstanding(version.id, range(3)) == 0


def wait_until_blocked(under: LedgerUnderTest) -> None:
    """Until somebody waits for a lock; SQLite does not tell, and has one writer anyhow."""
    if not under.ledger.database.is_postgresql:
        return
    pending = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")

    def waiting() -> bool:
        with under.ledger.database.read() as connection:
            return bool(connection.scalar(pending))

    wait_for("somebody who waits for a lock", waiting, timeout_s=10)


# --- dead letters put back -----------------------------------------------------------------------


def test_retried_records_get_three_fresh_attempts(ledger: LedgerUnderTest) -> None:
    """The old attempts are kept under the number of the retry; the sealed shard is reopened and sealed anew."""
    finish(ledger, "1", "8")
    done = ledger.ledger.interventions.retry_dead_letters(ledger.version.id, "invalid_output", who="me")
    assert done == Retried(retry=1, records=2, shards=2)
    assert ledger.states() == ["pending", "completed", "pending"]
    assert ledger.ledger.outcomes.failed_attempts(ledger.version.id, 0) == {}
    assert {(row.record_id, row.retry) for row in rows_of(ledger, failures)} == {("1", 1), ("8", 1)}
    lease = ledger.claim()
    assert (lease.shard, lease.reopened) == (0, 1)
    ledger.put(lease, failure("1", attempt=1), failure("1", attempt=2))
    assert ledger.ledger.outcomes.failed_attempts(ledger.version.id, 0) == {"1": 2}
    ledger.put(lease, failure("1", attempt=3))
    ledger.complete(lease, rows=3)
    again = ledger.ledger.interventions.retry_dead_letters(ledger.version.id, "invalid_output", who="me")
    assert again == Retried(retry=2, records=1, shards=1)
    attempts = sorted((row.retry, row.attempt) for row in rows_of(ledger, failures) if row.record_id == "1")
    assert attempts == [(retry, attempt) for retry in (1, 2) for attempt in (1, 2, 3)]
    invariants.check(ledger.ledger, ledger.version.id)


def test_retrying_twice_puts_back_once(ledger: LedgerUnderTest) -> None:
    """When nothing is left of a reason, nothing happens; other reasons stay dead letters."""
    finish(ledger, "1")
    retry = ledger.ledger.interventions.retry_dead_letters
    assert retry(ledger.version.id, "timeout", who="me").retry is None
    retry(ledger.version.id, "invalid_output", who="me")
    before = everything(ledger)
    assert retry(ledger.version.id, "invalid_output", who="me") == Retried(retry=None, records=0, shards=0)
    assert everything(ledger) == before


def test_a_retry_takes_the_shard_from_its_worker(ledger: LedgerUnderTest) -> None:
    """Whoever works on a shard while dead letters are put back is fenced; what it stored stays."""
    lease = ledger.claim()
    ledger.put(lease, failure("0", attempt=3), result("1"))
    ledger.ledger.interventions.retry_dead_letters(ledger.version.id, "invalid_output", who="me")
    with pytest.raises(Fenced):
        ledger.put(lease, result("0"))
    assert ledger.ledger.outcomes.settled_ids(ledger.version.id, 0) == {"1"}
    assert ledger.claim("w2").reopened == 0  # it was not sealed


def test_a_flush_in_flight_is_counted_before_or_refused_after_a_retry(ledger: LedgerUnderTest) -> None:
    """The retry waits for the flush that holds the shard, and puts its dead letter back as well."""
    lease = ledger.claim()
    ledger.put(lease, failure("0", attempt=3))
    with holding("put.before_commit") as held:
        putting = in_thread(lambda: ledger.put(lease, failure("1", attempt=3), result("2")))
        assert held.reached.wait(60)
        retry = ledger.ledger.interventions.retry_dead_letters
        retrying = in_thread(lambda: retry(ledger.version.id, "invalid_output", who="me"))
        wait_until_blocked(ledger)
        held.may_go.set()
        putting.result(60)
    assert retrying.result(60) == Retried(retry=1, records=2, shards=1)
    assert ledger.ledger.outcomes.settled_ids(ledger.version.id, 0) == {"2"}
    invariants.check(ledger.ledger, ledger.version.id)


@pytest.mark.parametrize("state", ["published", "cancelled", "retired"])
def test_no_retry_where_it_would_change_what_is_settled(ledger: LedgerUnderTest, state: str) -> None:
    """A published, cancelled or retired version keeps its dead letters."""
    if state == "cancelled":
        ledger.put(ledger.claim(), failure("0", attempt=3))
        ledger.ledger.interventions.cancel(ledger.version.id)
    else:
        finish(ledger, "1")
    if state == "published":
        ledger.ledger.publications.move(publication(ledger.version.id))
    if state == "retired":
        ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    before = everything(ledger)
    with pytest.raises((GateError, VersionError), match=r"published|cancelled|retired"):
        ledger.ledger.interventions.retry_dead_letters(ledger.version.id, "invalid_output", who="me")
    assert everything(ledger) == before


# --- publishing ----------------------------------------------------------------------------------


def test_a_version_with_open_shards_is_not_published(ledger: LedgerUnderTest) -> None:
    """The pointer stays where it was, whatever the caller believed."""
    ledger.answer_all(ledger.claim())
    with pytest.raises(GateError, match="not completed"):
        ledger.ledger.publications.move(publication(ledger.version.id))
    assert ledger.ledger.publications.current("tickets") is None
    assert ledger.ledger.publications.history() == []


def test_a_version_is_published_or_reopened_never_both(ledger: LedgerUnderTest) -> None:
    """Of a publication and a retry at the same moment exactly one happens."""
    seen = set()
    for number in range(25):
        version = small_version(records=1, shard_size=1, prompt=f"race {number}")
        ledger.ledger.plans.register(version, file_sha256="r")
        ledger.ledger.plans.write_plan(version, [(0, failure("0", attempt=1, reason=Reason.REJECTED))])
        lease = ledger.ledger.leases.claim(version.id, owner="w", lease_s=60, wanted=range(1))
        assert lease is not None
        ledger.ledger.leases.complete(lease, SealedFile(key="k", sha256="x", size=1, rows=0))
        move = publication(version.id, publication_id=version.id, job=version.id)
        published, retried = at_once(
            lambda move=move: ledger.ledger.publications.move(move),
            lambda version=version: ledger.ledger.interventions.retry_dead_letters(version.id, "rejected", who="me"),
        )
        assert isinstance(published, GateError) != isinstance(retried, GateError), (published, retried)
        (shard,) = ledger.ledger.progress.shards(version.id)
        is_published = ledger.ledger.publications.current(version.id) == version.id
        assert (is_published, shard.state) in {(True, "completed"), (False, "pending")}
        seen.add(is_published)
    assert seen, "no race was run"


def test_a_publication_sent_again_while_the_first_is_under_way(ledger: LedgerUnderTest) -> None:
    """The second try waits, finds the move in the history and is content: no conflict, no second line."""
    finish(ledger)
    move = publication(ledger.version.id)
    with holding("publish.before_commit") as held:
        first = in_thread(lambda: ledger.ledger.publications.move(move))
        assert held.reached.wait(60)
        second = in_thread(lambda: ledger.ledger.publications.move(move))
        wait_until_blocked(ledger)
        held.may_go.set()
        first.result(60)
    second.result(60)
    assert len(ledger.ledger.publications.history("tickets")) == 1


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Starts the calls at the same moment; gives what each returned or raised."""
    barrier = threading.Barrier(len(calls))

    def start(call: Callable[[], Any]) -> Any:
        barrier.wait(60)
        try:
            return call()
        except BatchAssetsError as error:
            return error

    return [one.result(60) for one in [in_thread(lambda call=call: start(call)) for call in calls]]


# --- retiring and forgetting ---------------------------------------------------------------------


def test_retiring_drops_the_rows_and_keeps_the_shard_table(ledger: LedgerUnderTest) -> None:
    """On PostgreSQL the version's partitions go, on SQLite its rows; doing it twice is harmless."""
    finish(ledger, "1")
    other = small_version(prompt="other")
    ledger.ledger.plans.register(other, file_sha256="g")
    ledger.ledger.plans.write_plan(other, [(0, failure("0", attempt=1, reason=Reason.EMPTY_INPUT))])
    on_postgresql = ledger.ledger.database.is_postgresql
    assert not on_postgresql or partitions(ledger) == 4
    table = rows_of(ledger, shards)
    assert ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    assert not ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    assert rows_of(ledger, outcomes) == rows_of(ledger, failures) == []
    assert not on_postgresql or partitions(ledger) == 2
    assert rows_of(ledger, shards) == table
    assert ledger.ledger.outcomes.settled_ids(other.id, 0) == {"0"}
    invariants.check(ledger.ledger, ledger.version.id)


def test_a_retirement_cut_short_is_finished_by_the_next(ledger: LedgerUnderTest) -> None:
    """Marked as retired, but its rows still there: retiring again removes them."""
    finish(ledger)
    with losing(f"retire.{AFTER}"), pytest.raises(StoreError):
        ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    assert rows_of(ledger, outcomes)
    ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    assert rows_of(ledger, outcomes) == []


@pytest.mark.parametrize("state", ["open", "published"])
def test_what_is_in_use_is_not_retired(ledger: LedgerUnderTest, state: str) -> None:
    """Neither a version that workers are on, nor the one that readers see."""
    if state == "published":
        finish(ledger)
        ledger.ledger.publications.move(publication(ledger.version.id))
    before = everything(ledger)
    with pytest.raises(GateError):
        ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    assert everything(ledger) == before


@pytest.mark.case("D38")
@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_the_slowest_writer_after_the_rows_are_gone(ledger: LedgerUnderTest, end: str) -> None:
    """D38: its flush is refused, and nothing comes back to life."""
    slow = ledger.claim()
    put = Put(lease=slow, results=[result("0")], engine="e")
    ledger.clock.now += 10_000
    if end == "completed":
        finish(ledger)
    else:
        ledger.ledger.interventions.cancel(ledger.version.id)
    ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    before = everything(ledger)
    with pytest.raises(Fenced):
        ledger.ledger.outcomes.put(put)
    ledger.ledger.interventions.forget(ledger.version.id)
    with pytest.raises(Fenced):
        ledger.ledger.outcomes.put(put)
    assert before["outcomes"] == everything(ledger)["outcomes"] == []


@pytest.mark.parametrize("cut_short", [False, True])
def test_a_forgotten_version_can_be_pinned_and_planned_anew(ledger: LedgerUnderTest, cut_short: bool) -> None:
    """Nothing of its former life is left, not even when its retirement was cut short; twice is harmless."""
    finish(ledger, "1")
    if cut_short:
        with losing(f"retire.{AFTER}"), pytest.raises(StoreError):
            ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    else:
        ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    for _ in range(2):
        ledger.ledger.interventions.forget(ledger.version.id)
    assert not any(everything(ledger).values())
    ledger.ledger.plans.register(ledger.version, file_sha256="f")
    assert ledger.ledger.plans.write_plan(ledger.version, ()) == 0
    finish(ledger)
    assert ledger.states() == ["completed"] * 3
    invariants.check(ledger.ledger, ledger.version.id)


def test_what_readers_have_seen_is_never_forgotten(ledger: LedgerUnderTest) -> None:
    """A version that was published once stays known, and so does one that is not retired."""
    before = everything(ledger)
    ledger.ledger.interventions.forget(ledger.version.id)
    assert everything(ledger) == before
    finish(ledger)
    ledger.ledger.publications.move(publication(ledger.version.id))
    ledger.ledger.publications.move(publication("v2", before=ledger.version.id, publication_id="q"))
    with pytest.raises(GateError, match="can be rolled back to"):
        ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    ledger.ledger.interventions.retire(ledger.version.id)
    ledger.ledger.interventions.forget(ledger.version.id)
    assert rows_of(ledger, versions)


def test_results_that_nobody_has_published_are_not_retired_by_the_way(ledger: LedgerUnderTest) -> None:
    """A complete version goes only when it is said to go altogether; from then on it is not published."""
    finish(ledger)
    with pytest.raises(GateError, match="never published"):
        ledger.ledger.interventions.retire(ledger.version.id)
    assert ledger.ledger.interventions.retire(ledger.version.id, forget=True)
    with pytest.raises(GateError, match="retired"):
        ledger.ledger.publications.move(publication(ledger.version.id))
    assert ledger.ledger.publications.current("tickets") is None


# --- terminal states -----------------------------------------------------------------------------

WRITES: dict[str, Callable[[LedgerUnderTest, Lease], object]] = {
    "put": lambda under, lease: under.put(lease, result("0"), failure("1", attempt=3)),
    "renew": lambda under, lease: under.ledger.leases.renew(lease, lease_s=600),
    "release": lambda under, lease: under.ledger.leases.release(lease),
    "trouble": lambda under, lease: under.ledger.leases.release(lease, trouble="t"),
    "complete": lambda under, lease: under.complete(lease, rows=1),
    "claim": lambda under, lease: under.try_claim(wanted=range(1)),
    "reclaim": lambda under, lease: under.ledger.leases.reclaim_dead(under.version.id, lambda owner: True),
    "requeue": lambda under, lease: under.ledger.interventions.requeue(under.version.id, [0]),
    "cancel": lambda under, lease: under.ledger.interventions.cancel(under.version.id),
}


@pytest.mark.case("C50")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_terminal_states_never_change(ledger: LedgerUnderTest, end: str, write: str) -> None:
    """C50: no write of anybody moves a shard that is completed or cancelled."""
    lease = ledger.claim()
    if end == "completed":
        ledger.answer_all(lease)
        ledger.complete(lease)
        finish(ledger)
    else:
        ledger.put(lease, result("2"))
        ledger.ledger.interventions.cancel(ledger.version.id)
    ledger.clock.now += 10_000
    before = everything(ledger)
    with contextlib.suppress(Fenced):
        WRITES[write](ledger, lease)
    assert everything(ledger) == before


def test_a_write_that_races_with_a_cancellation(ledger: LedgerUnderTest) -> None:
    """C50: a flush that was first is kept and counted; after the cancellation none gets in."""
    for number in range(20):
        version = small_version(records=4, shard_size=4, prompt=f"race {number}")
        ledger.ledger.plans.register(version, file_sha256="r")
        ledger.ledger.plans.write_plan(version, ())
        lease = ledger.ledger.leases.claim(version.id, owner="w", lease_s=60, wanted=range(1))
        assert lease is not None
        put = Put(lease=lease, results=[result("0")], engine="e")
        stored, cancelled = at_once(
            lambda put=put: ledger.ledger.outcomes.put(put),
            lambda version=version: ledger.ledger.interventions.cancel(version.id),
        )
        assert cancelled == {"cancelled": 1}
        assert len(ledger.ledger.outcomes.settled_ids(version.id, 0)) == (not isinstance(stored, Fenced))
        invariants.check(ledger.ledger, version.id)
