"""What has gone wrong in comparable systems around publishing and the stores, as their users would meet it here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from assets_tests.factories import make_job, make_records, record_id
from assets_tests.homes import Home
from assets_tests.operations.test_publish import finished, seen_by_readers
from batch_assets.engine.encoder import ScriptedEncoder
from batch_assets.errors import PublicationConflict, StoreError
from batch_assets.operations.publish import publish
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.publications import Publication, Publications


@pytest.mark.case("C02")
def test_no_text_three_megabytes_and_a_broken_template_in_one_shard(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends with its own reason, and the worker goes on."""
    records = make_records(5)
    records[0] |= {"subject": None, "body": None}
    records[1] |= {"body": "\N{MONKEY}" * 750_000}
    fail_on(monkeypatch, "body of record 2;")
    make_job(home.jobs, records=records, script={})
    registered, _ = home.worked()
    found = {one.record_id: one.reason for one in home.dead_letters(registered)}
    assert found == {record_id(0): "empty_input", record_id(1): "input_too_long", record_id(2): "render_error"}
    assert home.status(registered)["results"] == 2


def fail_on(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The tokenizer raises for the record with this text."""
    encode = ScriptedEncoder.encode

    def fails_on_one(encoder: ScriptedEncoder, prompt: str) -> tuple[int, ...]:
        if text in prompt:
            raise KeyError("no such variable")
        return encode(encoder, prompt)

    monkeypatch.setattr(ScriptedEncoder, "encode", fails_on_one)


@pytest.mark.case("C03", "C17")
def test_a_prompt_that_cannot_be_made_costs_one_record(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template or tokenizer raises for one record: `render_error`, and the end of the shard is reached."""
    make_job(home.jobs, records=10, shard_size=5, script={})
    fail_on(monkeypatch, "body of record 3;")
    registered, report = home.worked()
    (letter,) = home.dead_letters(registered)
    assert (letter.record_id, letter.reason) == (record_id(3), "render_error")
    assert "KeyError" in letter.error
    assert (report.shards_completed, report.results) == (2, 9)


def lost_once(monkeypatch: pytest.MonkeyPatch, *, times: int) -> list[str]:
    """The pointer moves, and the answer is lost that many times."""
    lost: list[str] = []
    move = Publications.move

    def move_and_lose(publications: Publications, publication: Publication) -> Publication:
        moved = move(publications, publication)
        if len(lost) < times:
            lost.append(publication.publication_id)
            raise StoreError("connection lost after COMMIT")
        return moved

    monkeypatch.setattr(Publications, "move", move_and_lose)
    return lost


@pytest.mark.case("D40", "D44")
def test_a_publication_whose_answer_is_lost_has_happened_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent again with its id, and is a no-op: one line in the history, and readers see it."""
    first, second = finished(home, "Sort"), finished(home, "Order", publish_it=False)
    lost = lost_once(monkeypatch, times=2)
    publish(home.deployment, second)
    assert len(lost) == 2
    assert seen_by_readers(home) == second.job_version
    moves = [move.to_version for move in home.deployment.ledger.publications.history("tiny")]
    assert moves == [second.job_version, first.job_version]


@pytest.mark.case("D44")
def test_while_the_outcome_of_a_swap_is_unknown_no_file_goes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stays lost: readers see a whole version, every file is there, and the next publish decides."""
    finished(home, "Sort")
    second = finished(home, "Order", publish_it=False)
    before = files(home)
    with monkeypatch.context() as patched:
        lost_once(patched, times=99)
        with pytest.raises(StoreError):
            publish(home.deployment, second)
    assert before <= files(home)
    seen_by_readers(home)
    publish(home.deployment, second)
    assert seen_by_readers(home) == second.job_version


@pytest.mark.case("D47")
def test_losing_the_race_to_publish_leaves_nothing_behind(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times somebody else was faster: the disk is as it was."""
    finished(home, "Sort")
    second = finished(home, "Order", publish_it=False)

    def too_late(_publications: Publications, _publication: Publication) -> None:
        raise PublicationConflict("somebody published meanwhile", expected=None, found="other")

    before = files(home)
    monkeypatch.setattr(Publications, "move", too_late)
    for _ in range(20):
        with pytest.raises(PublicationConflict):
            publish(home.deployment, second)
    assert files(home) == before


@pytest.mark.case("D34")
def test_a_put_whose_answer_was_lost_is_recognised_as_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store says "exists already" to the second try of our own put; another's object stays another's."""
    objects = LocalObjects(tmp_path)
    put = obstore.put

    def answered_late(store: Any, key: str, data: bytes, **options: Any) -> Any:
        put(store, key, data, **options)
        raise AlreadyExistsError(key)  # what a client that has retried by itself reports

    monkeypatch.setattr(obstore, "put", answered_late)
    assert objects.put_if_absent("ours", b"rows")
    monkeypatch.setattr(obstore, "put", put)
    assert objects.put_if_absent("theirs", b"their rows")
    assert not objects.put_if_absent("theirs", b"our rows")
    assert objects.get("theirs") == b"their rows"


def files(home: Home) -> set[str]:
    root = home.deployment.settings.root
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "-wal" not in path.name and "-shm" not in path.name
    }
