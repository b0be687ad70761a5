"""The pointer and retention on every ledger database: who may move it, and what a sweep may mark."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from assets_tests.ledgers import LedgerUnderTest
from assets_tests.losing import holding
from batch_assets.errors import GateError, InputError, PublicationConflict
from batch_assets.storage.publications import Publication, Publications
from batch_assets.storage.retention import Decision


def move(to: str, before: str | None, *, publication_id: str | None = None, kind: str = "publish") -> Publication:
    return Publication(
        publication_id=publication_id or f"{kind}-{before}-{to}",
        job="tickets",
        kind="rollback" if kind == "rollback" else "publish",
        from_version=before,
        to_version=to,
        who="me",
        verdicts={},
    )


def sweep(ledger: LedgerUnderTest, *, dry_run: bool = False, grace_s: float = 0) -> Decision:
    return ledger.ledger.retention.decide("tickets", keep=1, grace_s=grace_s, who="me", dry_run=dry_run)


def finish(ledger: LedgerUnderTest) -> str:
    while (lease := ledger.try_claim()) is not None:
        ledger.answer_all(lease)
        ledger.complete(lease)
    return ledger.version.id


def race(publications: Publications, name: str) -> tuple[list[Publication], list[PublicationConflict]]:
    """Five publishers who all saw the same: who won, and what the others were told."""
    start, won, lost = threading.Barrier(5), list[Publication](), list[PublicationConflict]()
    standing = publications.pointer("tickets")
    shown, replaces = (None, None) if standing is None else (standing.to_version, standing.publication_id)

    def run(number: int) -> None:
        start.wait(30)
        try:
            won.append(publications.move(replace(move(f"{name}{number}", shown), replaces=replaces)))
        except PublicationConflict as conflict:
            lost.append(conflict)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return won, lost


def test_of_many_publishers_from_one_baseline_one_wins(ledger: LedgerUnderTest) -> None:
    """From nothing, and from a publication that is there: the others learn what they expected and found."""
    publications, shown = ledger.ledger.publications, None
    for name in ("a", "b"):
        won, lost = race(publications, name)
        assert (len(won), len(lost)) == (1, 4)
        assert publications.current("tickets") == won[0].to_version
        assert {(one.expected, one.found) for one in lost} == {(shown, won[0].to_version)}
        shown = won[0].to_version
    assert [one.sequence for one in publications.history("tickets")] == [2, 1]


def test_a_publication_is_what_is_compared_not_the_version(ledger: LedgerUnderTest) -> None:
    """The same version came back by another publication: whoever decided before that has to look again."""
    publications = ledger.ledger.publications
    first = publications.move(move("v1", None))
    publications.move(move("v2", "v1"))
    publications.move(move("v1", "v2", kind="rollback"))
    with pytest.raises(PublicationConflict, match=f"expected publication {first.publication_id}, found rollback-v2-v1"):
        publications.move(replace(move("v3", "v1"), replaces=first.publication_id))
    assert publications.move(replace(move("v3", "v1"), replaces="rollback-v2-v1")).sequence == 4


def test_an_id_stands_for_one_move(ledger: LedgerUnderTest) -> None:
    """Sent again it answers with that move, whatever was published since; for another move it is refused."""
    publications = ledger.ledger.publications
    first = publications.move(move("v1", None, publication_id="x"))
    publications.move(move("v2", "v1"))
    assert publications.move(move("v1", None, publication_id="x")) == first
    for other in (
        move("v2", "v1", publication_id="x"),
        move("v1", "v2", publication_id="x", kind="rollback"),
        replace(move("v1", None, publication_id="x"), job="others"),
    ):
        with pytest.raises(InputError, match="'x' was used for the publish of v1 in tickets"):
            publications.move(other)
    assert publications.current("tickets") == "v2"


def test_what_was_swept_is_shown_to_nobody(ledger: LedgerUnderTest) -> None:
    """A dry run marks nothing; a mark stays, whoever sweeps again and by whatever rule."""
    publications, version = ledger.ledger.publications, finish(ledger)
    publications.move(move(version, None))
    publications.move(move("v2", version))
    ledger.clock.now += 3600
    assert sweep(ledger, grace_s=3601).kept[version].startswith("readers could open it")
    assert sweep(ledger, dry_run=True).swept == (version,)
    assert ledger.ledger.retention.swept() == set()
    assert sweep(ledger).swept == (version,)
    assert sweep(ledger, grace_s=1e9).swept == (version,)
    for kind in ("rollback", "publish"):
        with pytest.raises(GateError, match="were removed by me"):
            publications.move(move(version, "v2", kind=kind))
    assert publications.current("tickets") == "v2"


def test_a_sweep_waits_for_a_rollback_that_is_being_committed(ledger: LedgerUnderTest) -> None:
    """It then sees where readers are, and leaves that version alone."""
    publications, version = ledger.ledger.publications, finish(ledger)
    publications.move(move(version, None))
    publications.move(move("v2", version))
    decisions: list[Decision] = []
    with holding("publish.before_commit") as held:
        back = threading.Thread(target=lambda: publications.move(move(version, "v2", kind="rollback")))
        back.start()
        assert held.reached.wait(30)
        sweeping = threading.Thread(target=lambda: decisions.append(sweep(ledger)))
        sweeping.start()
        sweeping.join(0.3)
        assert sweeping.is_alive()
        held.may_go.set()
        back.join(60)
        sweeping.join(60)
    assert publications.current("tickets") == version
    assert version in decisions[0].kept
    assert version not in ledger.ledger.retention.swept()
