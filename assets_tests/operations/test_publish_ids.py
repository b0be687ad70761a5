"""The pointer is compared and swapped: retries are harmless, and of two publishers one wins."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from assets_tests.factories import make_records
from assets_tests.homes import Home
from assets_tests.operations.test_publish import seen_by_readers
from assets_tests.publishing import judged, published, worked
from batch_assets.errors import GateError, InputError, PublicationConflict
from batch_assets.operations import publish as module
from batch_assets.operations.intervene import retry_dead_letters
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.work import work
from batch_assets.storage.publications import Publication


def test_a_retry_with_the_same_id_moves_nothing(home: Home) -> None:
    """Also when others have published since: it says what happened, and what readers see now."""
    first = judged(home, worked(home, "Sort"))
    done = publish(home.deployment, first, publish_id="nightly-1")
    assert (done.changed, done.publication_id, done.happened_at) == (True, "nightly-1", None)
    second = published(home, "Put")
    again = publish(home.deployment, first, publish_id="nightly-1")
    assert (again.changed, again.shows, again.job_version) == (False, second.job_version, first.job_version)
    assert again.happened_at is not None
    assert "has taken tiny to" in again.sentence
    assert second.job_version in again.sentence
    assert seen_by_readers(home) == second.job_version
    assert len(home.deployment.ledger.publications.history("tiny")) == 2


def test_an_id_belongs_to_one_move(home: Home) -> None:
    """Another version, another job's or the other kind of move is refused with it, and so is no id at all."""
    first = judged(home, worked(home, "Sort"))
    publish(home.deployment, first, publish_id="x")
    second = judged(home, worked(home, "Put"))
    with pytest.raises(InputError, match=f"'x' was used for the publish of {first.job_version}"):
        publish(home.deployment, second, publish_id="x")
    with pytest.raises(InputError, match="was used for"):
        rollback(home.deployment, "tiny", publish_id="x")
    for bad in ("", "-x", "a b", "x" * 129, "é"):
        with pytest.raises(InputError, match="at most 128 letters"):
            publish(home.deployment, second, publish_id=bad)
    assert seen_by_readers(home) == first.job_version


def test_a_rollback_that_is_sent_again_goes_back_once(home: Home) -> None:
    """Without an id the second call would go back another step."""
    published(home, "Sort")
    second = published(home, "Put")
    published(home, "Lay")
    assert rollback(home.deployment, "tiny", publish_id="back").changed
    again = rollback(home.deployment, "tiny", publish_id="back")
    assert (again.changed, again.shows) == (False, second.job_version)
    assert seen_by_readers(home) == second.job_version


def test_of_two_publishers_from_one_baseline_exactly_one_wins(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is told what it expected and what it found; readers see the winner's."""
    base = published(home, "Sort")
    rivals = [worked(home, word) for word in ("Put", "Lay")]
    for rival in rivals:
        judged(home, rival)
    ready, outcomes = threading.Barrier(2), dict[str, object]()
    move = module._move

    def together(*arguments: object) -> object:
        ready.wait(30)
        return move(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_move", together)

    def race(rival: object, version: str) -> None:
        try:
            outcomes[version] = publish(home.deployment, rival)  # type: ignore[arg-type]
        except PublicationConflict as conflict:
            outcomes[version] = conflict

    threads = [threading.Thread(target=race, args=(one, one.job_version)) for one in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (lost,) = [found for found in outcomes.values() if isinstance(found, PublicationConflict)]
    (winner,) = [version for version, found in outcomes.items() if not isinstance(found, PublicationConflict)]
    assert (lost.expected, lost.found) == (base.job_version, winner)
    assert base.job_version in str(lost)
    assert seen_by_readers(home) == winner
    assert len(home.deployment.ledger.publications.history("tiny")) == 2


def test_the_same_version_is_not_the_same_publication(home: Home) -> None:
    """Published, replaced and rolled back to between a publisher's look and its move: that is a conflict."""
    base = published(home, "Sort")
    then = home.deployment.ledger.publications.pointer("tiny")
    assert then is not None
    published(home, "Put")
    rollback(home.deployment, "tiny")
    late = judged(home, worked(home, "Lay"))
    move = Publication(
        publication_id="late", job="tiny", kind="publish", from_version=base.job_version, to_version=late.job_version,
        who="me", verdicts={}, replaces=then.publication_id,
    )  # fmt: skip
    with pytest.raises(PublicationConflict, match=f"expected publication {then.publication_id}"):
        home.deployment.ledger.publications.move(move)
    assert home.deployment.ledger.publications.move(replace(move, replaces=None)).sequence == 4


def test_what_changed_after_it_was_judged_is_not_published(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters that are put back and answered while the files are verified: the verdicts spoke of something else."""
    records = make_records(10)
    records[7] |= {"subject": None, "body": None}
    version = judged(home, worked(home, "Sort", records=records))
    verify = module.verify_files

    def reopened_meanwhile(*arguments: object) -> None:
        verify(*arguments)  # type: ignore[arg-type]
        assert retry_dead_letters(home.deployment, version, "empty_input").records == 1
        work(home.deployment, version)

    monkeypatch.setattr(module, "verify_files", reopened_meanwhile)
    with pytest.raises(GateError, match="was changed after it was judged"):
        publish(home.deployment, version)
    assert home.deployment.ledger.publications.current("tiny") is None
