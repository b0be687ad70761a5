"""Hostile texts in every place of a job: stored as they are, or dead letters with their own reason."""

from __future__ import annotations

import re
from pathlib import Path

from assets_tests.hostile.conftest import JOB, Hostile
from batch_assets.storage.warehouse import open_warehouse

SAFE_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


def test_every_result_is_sealed_as_it_came(hostile: Hostile) -> None:
    """Id, label and answer in the sealed files are the same characters that went in."""
    rows = hostile.home.sealed_rows(hostile.registered)
    by_id = {row["record_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    assert set(by_id) == set(hostile.case.stored)
    wrong = {
        record_id: (name, str(value)[:80], str(by_id[record_id][name])[:80])
        for record_id, columns in hostile.case.stored.items()
        for name, value in columns.items()
        if by_id[record_id][name] != value
    }
    assert not wrong


def test_every_other_record_is_a_dead_letter_with_its_own_reason(hostile: Hostile) -> None:
    """None is lost, none is given up for another one's sake, and the error says what was wrong."""
    letters = {letter.record_id: letter for letter in hostile.home.dead_letters(hostile.registered)}
    assert {record_id: letter.reason for record_id, letter in letters.items()} == {
        record_id: reason for record_id, (reason, _) in hostile.case.dead.items()
    }
    unexplained = {
        record_id: (part, letters[record_id].error)
        for record_id, (_, part) in hostile.case.dead.items()
        if part not in letters[record_id].error or not letters[record_id].error
    }
    assert not unexplained
    assert max(len(letter.error) for letter in letters.values()) <= 2_000


def test_results_and_dead_letters_are_the_snapshot(hostile: Hostile) -> None:
    """Nothing is missing, doubled or pending, and every check says so."""
    state = hostile.home.status(hostile.registered)
    assert state["pending"] == 0
    assert state["results"] + state["dead_letters"] == len(hostile.case.records)
    assert {one.check: one.summary for one in hostile.verdicts if not one.passed} == {}


def test_readers_see_the_same_characters(hostile: Hostile) -> None:
    """The published table, asked through DuckDB, has each id, label and answer unchanged."""
    with open_warehouse(hostile.home.deployment.settings.warehouse) as connection:
        rows = connection.execute(f"SELECT record_id, acl, summary FROM published.{JOB}").fetchall()
        found = {record_id: (label, summary) for record_id, label, summary in rows}
        assert len(found) == len(rows) == len(hostile.case.stored)
        for record_id, columns in hostile.case.stored.items():
            assert found[record_id][0] == columns["acl"]
            assert found[record_id][1] == columns.get("summary", "x")
            query = f"SELECT count(*) FROM published.{JOB} WHERE record_id = ?"
            assert connection.execute(query, [record_id]).fetchone() == (1,)


def test_no_text_becomes_a_file_name(hostile: Hostile) -> None:
    """The home holds only names of our own making, and nothing was made outside of it."""
    home = hostile.home.deployment.settings.root
    names = {path.name for path in home.rglob("*")}
    assert all(SAFE_NAME.fullmatch(name) for name in names), names
    assert not Path("/tmp/pwned").exists()
