"""What every ledger must do: leases, put if absent, dead letters, completion, publication."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from assets_tests.ledgers import LEASE_S, LedgerUnderTest, failure, result, small_version
from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Reason
from batch_assets.errors import Fenced, PublicationConflict, ShardTrouble, VersionError
from batch_assets.storage.outcomes import Put
from batch_assets.storage.publications import Publication
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import outcomes, shards

# --- planning ------------------------------------------------------------------------------------


def test_planning_twice_changes_nothing(ledger: LedgerUnderTest) -> None:
    """A second plan of the same version leaves shards and dead letters as they are."""
    lease = ledger.claim()
    again = ledger.ledger.plans.write_plan(ledger.version, [(0, failure("0", attempt=1, reason=Reason.EMPTY_INPUT))])
    assert again == 0
    assert ledger.states() == ["leased", "pending", "pending"]
    ledger.put(lease, result("0"))


def test_known_dead_letters_are_planned_into_their_shards(ledger: LedgerUnderTest) -> None:
    """Records given up in advance are counted in their shard and never wait for an answer."""
    version = small_version(prompt="other")
    ledger.ledger.plans.register(version, file_sha256="g")
    dead = [
        (1, failure("1", attempt=1, reason=Reason.INPUT_TOO_LONG)),
        (8, failure("8", attempt=1, reason=Reason.EMPTY_INPUT)),
    ]
    assert ledger.ledger.plans.write_plan(version, dead) == 2
    assert [row.dead_letters for row in ledger.ledger.progress.shards(version.id)] == [1, 0, 1]
    assert ledger.ledger.outcomes.settled_ids(version.id, 2) == {"8"}


def test_a_plan_that_fails_leaves_no_shard_behind(ledger: LedgerUnderTest) -> None:
    """A version is not planned or planned whole: an error in the middle rolls everything back."""
    version = small_version(prompt="other")
    ledger.ledger.plans.register(version, file_sha256="g")

    def broken() -> object:
        yield 0, failure("0", attempt=1, reason=Reason.EMPTY_INPUT)
        raise RuntimeError("snapshot went away")

    with pytest.raises(RuntimeError):
        ledger.ledger.plans.write_plan(version, broken())  # type: ignore[arg-type]
    assert list(ledger.ledger.progress.shards(version.id)) == []
    assert not ledger.ledger.plans.get(version.id).planned


def test_an_unknown_version_is_an_error_with_a_hint(ledger: LedgerUnderTest) -> None:
    """Asking for a version that is not registered says how to list them."""
    with pytest.raises(VersionError, match="batch-assets versions"):
        ledger.ledger.plans.get("v9_nothing")


# --- leases --------------------------------------------------------------------------------------


def test_shards_are_claimed_in_order_and_once(ledger: LedgerUnderTest) -> None:
    """Each pending shard is given to one claim, lowest first; then there is nothing."""
    assert [ledger.claim(f"w{n}").shard for n in range(3)] == [0, 1, 2]
    assert ledger.try_claim() is None


def test_only_wanted_shards_are_claimed(ledger: LedgerUnderTest) -> None:
    """A claim takes nothing outside of its range."""
    assert ledger.claim(wanted=range(1, 2)).shard == 1
    assert ledger.try_claim(wanted=range(1, 2)) is None


@pytest.mark.case("D03")
def test_an_expired_lease_goes_to_the_next_claim_first(ledger: LedgerUnderTest) -> None:
    """A silent owner's shard is taken before pending ones, and its epoch moves."""
    first = ledger.claim()
    ledger.clock.now += LEASE_S + 1
    heir = ledger.claim("w2")
    assert (heir.shard, heir.epoch) == (first.shard, first.epoch + 1)


def test_a_renewed_lease_is_kept(ledger: LedgerUnderTest) -> None:
    """Renewing within the lease keeps it for another length, with the epoch unchanged."""
    lease = ledger.claim()
    for _ in range(5):
        ledger.clock.now += LEASE_S - 1
        ledger.ledger.leases.renew(lease, lease_s=LEASE_S)
    assert ledger.claim("w2").shard == 1
    ledger.put(lease, result("0"))


def test_an_expired_lease_is_not_revived(ledger: LedgerUnderTest) -> None:
    """A renewal that comes too late is refused, even when nobody took the shard yet."""
    lease = ledger.claim()
    ledger.clock.now += LEASE_S + 1
    with pytest.raises(Fenced):
        ledger.ledger.leases.renew(lease, lease_s=LEASE_S)


def test_a_released_shard_is_pending_at_once(ledger: LedgerUnderTest) -> None:
    """Release hands back without waiting for the expiry; doing it twice is harmless."""
    lease = ledger.claim()
    assert ledger.ledger.leases.release(lease)
    assert not ledger.ledger.leases.release(lease)
    assert ledger.claim("w2").epoch == lease.epoch + 1


def test_leases_of_dead_owners_are_taken_back(ledger: LedgerUnderTest) -> None:
    """Only the owners that are known to be dead lose their shards."""
    dead, alive = ledger.claim("dead"), ledger.claim("alive")
    assert ledger.ledger.leases.reclaim_dead(ledger.version.id, lambda owner: owner == "dead") == 1
    assert ledger.claim("heir").shard == dead.shard
    ledger.put(alive, result("4"))


ZOMBIE_CALLS: dict[str, Callable[[LedgerUnderTest, Lease], object]] = {
    "renew": lambda under, lease: under.ledger.leases.renew(lease, lease_s=LEASE_S),
    "put": lambda under, lease: under.put(lease, result("3")),
    "fail": lambda under, lease: under.put(lease, failure("3", attempt=3)),
    "complete": lambda under, lease: under.complete(lease),
}


@pytest.mark.case("D27")
@pytest.mark.parametrize("call", ZOMBIE_CALLS)
@pytest.mark.parametrize("heir", ["w2", "w1"])  # fenced even when the owner is the same: the epoch decides
def test_a_worker_that_comes_back_changes_nothing(ledger: LedgerUnderTest, call: str, heir: str) -> None:
    """After a re-claim every write of the old epoch is refused and no row changes."""
    zombie = ledger.claim()
    ledger.put(zombie, result("0"))
    ledger.clock.now += LEASE_S + 1
    current = ledger.claim(heir)
    before = dump(ledger)
    with pytest.raises(Fenced):
        ZOMBIE_CALLS[call](ledger, zombie)
    assert not ledger.ledger.leases.release(zombie)
    assert dump(ledger) == before
    ledger.put(current, result("1"))


@pytest.mark.case("C49")
def test_racing_claims_give_each_shard_to_one_worker(ledger: LedgerUnderTest) -> None:
    """Eight threads claim a burst of shards; no shard is leased twice."""
    version = small_version(records=200, shard_size=2, prompt="race")
    ledger.ledger.plans.register(version, file_sha256="r")
    ledger.ledger.plans.write_plan(version, ())
    taken: list[int] = []

    def claim_all(owner: str) -> None:
        claim = ledger.ledger.leases.claim
        while lease := claim(version.id, owner=owner, lease_s=LEASE_S, wanted=range(100)):
            taken.append(lease.shard)

    threads = [threading.Thread(target=claim_all, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(100))


# --- outcomes ------------------------------------------------------------------------------------


@pytest.mark.case("C28")
def test_the_first_result_stands_and_the_second_is_counted(ledger: LedgerUnderTest) -> None:
    """Put if absent: a second result of a record is a counted discard, whatever it says."""
    lease = ledger.claim()
    ledger.put(lease, result("0", payload='"first"'))
    receipt = ledger.put(lease, result("0", payload='"second"'), result("1"))
    assert (receipt.stored, receipt.discarded) == (1, 1)
    stored = ledger.ledger.outcomes.results_of_shard(ledger.version.id, 0)
    assert [(one.record_id, one.payload) for one in stored] == [("0", '"first"'), ("1", "{}")]
    assert ledger.ledger.progress.of(ledger.version.id).duplicates_discarded == 1


def test_a_record_has_a_result_or_a_dead_letter_never_both(ledger: LedgerUnderTest) -> None:
    """Whichever outcome comes first stands; the other is a discard."""
    lease = ledger.claim()
    ledger.put(lease, result("0"))
    assert ledger.put(lease, failure("0", attempt=3)).dead_lettered == 0
    ledger.put(lease, failure("1", attempt=3))
    assert ledger.put(lease, result("1")).stored == 0
    progress = ledger.ledger.progress.of(ledger.version.id)
    assert (progress.results, progress.dead_letters) == (1, 1)


def test_three_failures_make_a_dead_letter_with_its_error(ledger: LedgerUnderTest) -> None:
    """Two failures are remembered over a change of worker; the third one ends the record."""
    lease = ledger.claim()
    ledger.put(lease, failure("0", attempt=1))
    ledger.put(lease, failure("0", attempt=2))
    assert ledger.ledger.outcomes.failed_attempts(ledger.version.id, 0) == {"0": 2}
    assert list(ledger.ledger.outcomes.dead_letters(ledger.version.id)) == []
    ledger.ledger.leases.release(lease)
    ledger.put(ledger.claim("w2"), failure("0", attempt=3))
    (letter,) = ledger.ledger.outcomes.dead_letters(ledger.version.id)
    assert (letter.record_id, letter.shard, letter.reason, letter.attempts) == ("0", 0, "invalid_output", 3)
    assert letter.error == "category: not one of a, b"


def test_a_put_sent_again_after_a_lost_answer_changes_nothing(ledger: LedgerUnderTest) -> None:
    """The same put twice stores once and moves no counter twice."""
    put = Put(lease=ledger.claim(), results=[result("0")], failures=[failure("1", attempt=3)])
    ledger.ledger.outcomes.put(put)
    before = dump(ledger)
    receipt = ledger.ledger.outcomes.put(put)
    assert (receipt.stored, receipt.dead_lettered, receipt.discarded) == (1, 1, 0)
    assert dump(ledger) == before


def test_a_new_worker_sees_what_is_settled(ledger: LedgerUnderTest) -> None:
    """After a re-claim the stored and dead-lettered records are known, so they are skipped."""
    lease = ledger.claim()
    ledger.put(lease, result("0"), failure("1", attempt=3), failure("2", attempt=1))
    ledger.ledger.leases.release(lease)
    assert ledger.ledger.outcomes.settled_ids(ledger.version.id, 0) == {"0", "1"}


# --- completion ----------------------------------------------------------------------------------


def test_a_whole_shard_completes_and_stays_completed(ledger: LedgerUnderTest) -> None:
    """Completion ends a shard for good: it is not claimed, not expired, not written to."""
    lease = ledger.claim()
    ledger.answer_all(lease)
    ledger.complete(lease)
    ledger.clock.now += 10 * LEASE_S
    assert ledger.claim().shard == 1
    with pytest.raises(Fenced):
        ledger.put(lease, result("0"))
    assert ledger.states()[0] == "completed"


def test_completing_again_after_a_lost_answer_is_harmless(ledger: LedgerUnderTest) -> None:
    """The same completion twice is a no-op, not an error."""
    lease = ledger.claim()
    ledger.answer_all(lease)
    ledger.complete(lease)
    ledger.complete(lease)


@pytest.mark.case("C33")
def test_a_shard_with_a_record_missing_does_not_complete(ledger: LedgerUnderTest) -> None:
    """Results + dead letters must equal the records; counted by the database, not believed."""
    lease = ledger.claim()
    ledger.put(lease, result("0"), result("1"), failure("2", attempt=3))
    with pytest.raises(ShardTrouble, match="2 results and 1 dead letters for 4 records"):
        ledger.complete(lease, rows=4)
    assert ledger.states()[0] == "leased"


def test_a_sealed_file_with_other_rows_than_the_ledger_does_not_complete(ledger: LedgerUnderTest) -> None:
    """The number of rows sealed must be the number of results stored."""
    lease = ledger.claim()
    ledger.answer_all(lease)
    with pytest.raises(ShardTrouble, match="3 rows in the sealed file"):
        ledger.complete(lease, rows=3)


@pytest.mark.case("D06")
def test_completion_and_reclaim_at_the_same_moment_have_one_winner(ledger: LedgerUnderTest) -> None:
    """An owner that completes at the expiry either wins or is fenced; never both."""
    version = small_version(records=60, shard_size=1, prompt="race")
    ledger.ledger.plans.register(version, file_sha256="r")
    ledger.ledger.plans.write_plan(version, ())
    leases = ledger.ledger.leases
    for shard in range(60):
        lease = leases.claim(version.id, owner="a", lease_s=LEASE_S, wanted=range(shard, shard + 1))
        assert lease is not None
        ledger.put(lease, result(str(shard)))
        ledger.clock.now += LEASE_S + 1
        won: list[str] = []
        barrier = threading.Barrier(2)

        def complete(lease: Lease = lease, won: list[str] = won, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                leases.complete(lease, SealedFile(key="k", sha256="x", size=1, rows=1))
                won.append("completed")
            except Fenced:
                pass

        def reclaim(shard: int = shard, won: list[str] = won, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            if leases.claim(version.id, owner="b", lease_s=LEASE_S, wanted=range(shard, shard + 1)):
                won.append("reclaimed")

        threads = [threading.Thread(target=complete), threading.Thread(target=reclaim)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, won


# --- publication ---------------------------------------------------------------------------------


def publication(to: str, *, before: str | None, publication_id: str | None = None) -> Publication:
    return Publication(
        publication_id=publication_id or f"id-{before}-{to}",
        job="tickets",
        kind="publish",
        from_version=before,
        to_version=to,
        who="me",
        verdicts={"coverage": True},
    )


def test_the_pointer_moves_only_from_what_was_expected(ledger: LedgerUnderTest) -> None:
    """Compare and swap: the loser learns what it expected and what it found, and nothing changes."""
    publications = ledger.ledger.publications
    publications.move(publication("v1", before=None))
    publications.move(publication("v2", before="v1"))
    for stale in (publication("v3", before="v1"), publication("v3", before=None)):
        with pytest.raises(PublicationConflict) as conflict:
            publications.move(stale)
        assert (conflict.value.expected, conflict.value.found) == (stale.from_version, "v2")
    assert publications.current("tickets") == "v2"
    assert [move.to_version for move in publications.history("tickets")] == ["v2", "v1"]


@pytest.mark.case("D40")
def test_publishing_again_with_the_same_id_is_a_no_op(ledger: LedgerUnderTest) -> None:
    """A publication whose answer was lost is repeated without a second line in the history."""
    publications = ledger.ledger.publications
    publications.move(publication("v1", before=None, publication_id="x"))
    publications.move(publication("v2", before="v1", publication_id="y"))
    publications.move(publication("v1", before=None, publication_id="x"))
    assert publications.current("tickets") == "v2"
    assert len(publications.history("tickets")) == 2


def dump(ledger: LedgerUnderTest) -> list[tuple[object, ...]]:
    """Everything in the tables that writes of a worker can change."""
    with ledger.ledger.database.read() as connection:
        return [
            tuple(row)
            for table in (shards, outcomes)
            for row in connection.execute(sa.select(table).order_by(*table.primary_key))
        ]
