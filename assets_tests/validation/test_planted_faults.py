"""Faults planted among very many rows: the right check names exactly the right ids, and clean data passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assets_tests.evidence import CATEGORIES, RESULTS, Case
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.access_labels import access_labels
from batch_assets.validation.coverage import coverage
from batch_assets.validation.dead_letters import dead_letters
from batch_assets.validation.drift import drift
from batch_assets.validation.evidence import Evidence
from batch_assets.validation.one_recipe import one_recipe
from batch_assets.validation.schema import schema

EVEN = f"{list(CATEGORIES)}[1 + n % 5]"  # each category a fifth, exactly
SCATTERED = f"{list(CATEGORIES)}[1 + (hash(n) % 5)::INT]"
MOVED = f"CASE WHEN n % 50 = 0 THEN 'technical' ELSE {EVEN} END"  # two points go from billing to technical


def id_of(number: int) -> str:
    return f"R-{number:08d}"


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A sound version of a million records in eight files."""
    return Case(tmp_path_factory.mktemp("million"), 1_000_000, shards=8).snapshot().results()


def test_a_sound_million_passes(million: Case) -> None:
    evidence = million.evidence()
    verdicts = [check(evidence) for check in (coverage, access_labels, one_recipe)]
    assert [verdict.passed for verdict in verdicts] == [True, True, True], verdicts
    assert verdicts[0].numbers["results"] == 1_000_000


@pytest.mark.case("C26", "C33")
def test_one_missing_row_among_a_million(million: Case) -> None:
    with million.planted(3, "n <> 400007") as evidence:
        found = coverage(evidence)
    assert (found.passed, found.summary, found.example_ids) == (False, "1 missing", (id_of(400_007),))


@pytest.mark.case("C26", "C33")
def test_one_doubled_row_among_a_million(million: Case) -> None:
    """Also when its twin is in another file."""
    with million.planted(5, again="n = 400007") as evidence:
        found = coverage(evidence)
    assert (found.passed, found.summary, found.example_ids) == (False, "1 doubled", (id_of(400_007),))


@pytest.mark.parametrize(
    "label",
    ["'team-9'", "NULL", "' ' || acl_", "acl_ || ' '", "upper(acl_)"],
    ids=["other", "lost", "before", "after", "case"],
)
def test_one_changed_label_among_a_million(million: Case, label: str) -> None:
    """Nulls, spaces and the case of letters count; the check cannot be told to let it pass."""
    label = label.replace("acl_", RESULTS["acl"].join("()"))
    with million.planted(1, acl=f"CASE WHEN n = 150001 THEN {label} ELSE {RESULTS['acl']} END") as evidence:
        found = access_labels(evidence)
    assert (found.passed, found.blocking, found.example_ids) == (False, True, (id_of(150_001),))
    assert found.numbers["label_lost"] == (label == "NULL")


def test_one_row_of_another_recipe_among_a_million(million: Case) -> None:
    with million.planted(
        7, _job_version=f"CASE WHEN n = 900001 THEN 'v9_other' ELSE '{million.version.id}' END"
    ) as evidence:
        found = one_recipe(evidence)
    assert (found.passed, found.blocking, found.example_ids) == (False, True, (id_of(900_001),))
    assert found.numbers["versions"] == {million.version.id: 999_999, "v9_other": 1}
    assert {engine: one["rows"] for engine, one in found.numbers["engines"].items()} == {
        "scripted 1 (cpu)": 500_000,
        "scripted 2 (cpu)": 500_000,
    }


def test_a_row_in_the_file_of_another_shard(million: Case) -> None:
    with million.planted(2, _shard="CASE WHEN n = 260000 THEN 3 ELSE 2 END") as evidence:
        found = one_recipe(evidence)
    assert (found.passed, found.numbers["misplaced"], found.example_ids) == (False, 1, (id_of(260_000),))


SCHEMA_FAULTS = {
    "enum": ("category", "'weather'", "category: isin(['billing', 'technical', 'account', 'shipping', 'feedback'])"),
    "null": ("summary", "NULL", "summary: not_nullable"),
    "length": ("summary", "repeat('x', 161)", "summary: str_length(1, 160)"),
    "item": ("entities", "['']", "entities: output_schema"),
    "list": ("entities", "['a', 'b', 'c', 'd', 'e', 'f']", "entities: output_schema"),
    "of ours": ("_engine", "NULL", "_engine: not_nullable"),
}


@pytest.fixture(scope="module")
def forty_thousand(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("thousands"), 45_000, shards=2).snapshot().results()


@pytest.mark.parametrize("fault", SCHEMA_FAULTS)
def test_schema_finds_one_bad_value_in_any_piece(forty_thousand: Case, fault: str) -> None:
    """The file is read in pieces; the id is right in the last one too."""
    column, value, rule = SCHEMA_FAULTS[fault]
    sound = forty_thousand.evidence()
    replaced = {column: f"CASE WHEN n = 44990 THEN {value} ELSE {RESULTS[column]} END"}
    with forty_thousand.planted(1, **replaced) as evidence:
        found = schema(replace(evidence, sealed_schema=not_null(sound)))
    assert (found.passed, found.example_ids) == (False, (id_of(44_990),))
    assert found.numbers[f"violations: {rule}"] == 1


def test_schema_finds_an_id_that_is_in_two_files(forty_thousand: Case) -> None:
    """Uniqueness is of the version, and sound rows pass."""
    sound = schema(forty_thousand.evidence())
    assert (sound.passed, sound.numbers["rows"]) == (True, 45_000), sound.summary
    with forty_thousand.planted(1, again="n = 7") as evidence:
        found = schema(evidence)
    assert (found.passed, found.numbers["violations: id: unique"], found.example_ids) == (False, 1, (id_of(7),))


def not_null(evidence: Evidence):  # type: ignore[no-untyped-def]
    """The columns as the sealer declares them: ours are never null."""
    columns = evidence.sealed_schema
    engine = columns.get_field_index("_engine")
    return columns.set(engine, columns.field(engine).with_nullable(False))


@pytest.mark.parametrize("records", [2_000, 200_000])
def test_a_category_that_moves_by_two_points(tmp_path: Path, records: int) -> None:
    """Caught with as few as 2,000 records, by comparing each with itself; the records that moved are named."""
    case = Case(tmp_path, records).snapshot().results(category=MOVED).baseline(category=EVEN)
    found = drift(case.evidence())
    assert not found.passed
    assert found.numbers["moves"]["technical"] == pytest.approx(0.02)
    assert found.numbers["churn"] == pytest.approx(0.02)
    assert found.example_ids == tuple(id_of(50 * number) for number in range(10))


def test_two_points_are_seen_without_shared_records_when_there_are_enough(tmp_path: Path) -> None:
    """Other ids on the two sides: 200,000 of each tell two points from chance, 2,000 do not, and say so."""
    stranger, unclassed = "printf('B-%08d', n)", {"_record_class": "NULL::VARCHAR"}
    large, small = (
        Case(tmp_path / str(records), records)
        .snapshot()
        .results(category=MOVED, **unclassed)
        .baseline(id=stranger, category=EVEN, **unclassed)
        for records in (200_000, 2_000)
    )
    found, unseen = drift(large.evidence()), drift(small.evidence())
    assert (found.passed, unseen.passed) == (False, True)
    assert found.numbers["smallest_visible_move"] < 0.02 < unseen.numbers["smallest_visible_move"]
    assert found.numbers["answered_by_both"] == 0


@pytest.mark.parametrize(
    ("records", "seed"), [(20, 1), (20, 2), (200, 3), (200, 4), (2_000, 5), (2_000, 6), (2_000, 7), (200_000, 8)]
)
def test_chance_is_no_drift(tmp_path: Path, records: int, seed: int) -> None:
    """Answers drawn anew from one distribution for the same records: most change, nothing has drifted."""
    drawn = f"{list(CATEGORIES)}[1 + (hash(n + {seed} * 1000000) % 100 // 20)::INT]"
    case = Case(tmp_path, records).snapshot().results(category=drawn).baseline()
    found = drift(case.evidence())
    assert found.passed, found.summary
    assert found.numbers["churn"] > 0.5


def test_drift_in_one_class_lengths_and_nothing_else(tmp_path: Path) -> None:
    """A class of a fifth moves by four points, which is less than a point overall; and summaries get longer."""
    in_class = f"CASE WHEN n % 125 = 0 THEN 'technical' ELSE {SCATTERED} END"
    before = SCATTERED
    case = Case(tmp_path, 20_000).snapshot().baseline(category=before)
    found = drift(case.results(category=in_class).evidence())
    assert not found.passed
    assert "class internal: technical moved by" in found.summary
    assert "class public" not in found.summary
    longer = drift(case.results(category=before, summary="repeat('x', 150)").evidence())
    assert (longer.passed, longer.numbers["lengths"]["summary"]["median_after"]) == (False, 150)
    assert longer.numbers["lengths"]["entities"]["distance"] == 0


def test_a_language_that_fails_is_named_although_few_do(tmp_path: Path) -> None:
    """One record in five hundred is Thai and none is answered: the rate is within bounds, the kind is not."""
    body = (
        "CASE WHEN n % 500 = 3 THEN 'สวัสดีครับ สินค้ายังไม่มาถึง' WHEN n % 7 = 0 THEN 'Здравствуйте' ELSE 'Good day' END || n"
    )
    case = (
        Case(tmp_path, 10_000).snapshot(body=body).results("n % 500 <> 3").dead_letters("substr(id, 3)::INT % 500 = 3")
    )
    found = dead_letters(case.evidence())
    assert (found.passed, found.blocking) == (False, True)
    assert "script Thai fails as a kind: 20 of 20 (100.0%; all others 0.00%), mostly invalid_output" in found.summary
    assert found.numbers["by_script"]["Cyrillic"] == {"records": 1427, "dead_letters": 0, "rate": 0.0}
    assert found.example_ids == tuple(id_of(3 + 500 * number) for number in range(10))


def test_dead_letters_of_all_kinds_are_no_cluster(tmp_path: Path) -> None:
    case = Case(tmp_path, 10_000).snapshot().results().dead_letters("hash(id) % 200 = 3")
    found = dead_letters(case.evidence())
    assert found.passed, found.summary
    assert found.numbers["dead_letters"] > 20


@pytest.mark.parametrize("check", [coverage, access_labels, one_recipe], ids=lambda check: check.__name__)
def test_integer_ids(tmp_path: Path, check: Callable[[Evidence], Verdict]) -> None:
    """Ids need not be text."""
    case = Case(tmp_path, 1000, shards=2).snapshot(id="n").results(id="n")
    assert check(case.evidence()).passed
    fault = {
        "access_labels": {"acl": "CASE WHEN n = 700 THEN 'x' ELSE " + RESULTS["acl"] + " END"},
        "one_recipe": {"_job_version": f"CASE WHEN n = 700 THEN NULL ELSE '{case.version.id}' END"},
    }.get(check.__name__, {})
    with case.planted(1, "n <> 700" if not fault else "true", id="n", **fault) as evidence:
        found = check(evidence)
    assert (found.passed, found.example_ids) == (False, ("700",))
