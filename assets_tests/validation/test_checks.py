"""Each check passes on clean data and fails, with the right ids, on the fault that it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from assets_tests.factories import make_job, make_records, record_id
from assets_tests.homes import Home
from batch_assets.core.verdicts import Verdict
from batch_assets.errors import GateError, SpecError
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.storage.objects import sha256_of
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.tables import shards


def answers(category: str, count: int = 20) -> dict[str, Any]:
    """A script in which all records get one category."""
    text = f'{{"category": "{category}", "summary": "s", "entities": []}}'
    return {"records": {record_id(n): {"text": text} for n in range(count)}}


def verdicts_of(home: Home, registered: RegisteredVersion) -> dict[str, Verdict]:
    return {verdict.check: verdict for verdict in check(home.deployment, registered)}


def rewrite(home: Home, registered: RegisteredVersion, shard: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Plant a fault in a sealed file, and in the ledger so that only the rows can give it away."""
    row = list(home.deployment.ledger.progress.shards(registered.job_version))[shard]
    path = home.deployment.objects.path(str(row.sealed_key))
    pq.write_table(change(pq.read_table(path)), path)
    with home.deployment.ledger.database.write("tamper") as connection:
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS terminal_shards_never_change")  # no code of ours could
        ours = (shards.c.job_version == registered.job_version, shards.c.shard == shard)
        connection.execute(sa.update(shards).where(*ours).values(sealed_sha256=sha256_of(path)))


def replace(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    index = table.schema.get_field_index(column)
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


def test_clean_data_passes_every_check(home: Home) -> None:
    """A complete version passes, and each check says what it looked at."""
    make_job(home.jobs, golden={record_id(0): "bug"}, script=answers("bug"))
    registered, _ = home.worked()
    found = verdicts_of(home, registered)
    assert list(found) == ["coverage", "schema", "drift", "evaluation", "dead_letters", "access_labels", "one_recipe"]
    assert all(verdict.passed for verdict in found.values()), found
    assert found["coverage"].summary == "20 results + 0 dead letters = 20 records"
    assert found["drift"].summary == "no baseline: nothing is published yet"


def test_coverage_names_the_shards_that_are_not_sealed(home: Home) -> None:
    """An unfinished version is judged as unfinished, with ids of what is missing."""
    make_job(home.jobs)
    registered = home.pinned()
    coverage = verdicts_of(home, registered)["coverage"]
    assert not coverage.passed
    assert coverage.summary == "20 missing, 4 shards not sealed"
    assert len(coverage.example_ids) == 10


@pytest.mark.case("C26", "C33")
@pytest.mark.parametrize(
    ("change", "fault", "ids"),
    [
        (lambda t: t.slice(1), "missing", {record_id(5)}),
        (lambda t: pa.concat_tables([t, t.slice(2, 1)]), "doubled", {record_id(7)}),
        (lambda t: replace(t, "record_id", ["stranger", *t["record_id"].to_pylist()[1:]]), "unknown", {record_id(5)}),
    ],
)
def test_coverage_finds_rows_missing_doubled_and_unknown(
    home: Home, change: Callable[[pa.Table], pa.Table], fault: str, ids: set[str]
) -> None:
    """By anti-join, not by counts: the ids of the fault are in the verdict."""
    make_job(home.jobs)
    registered, _ = home.worked()
    rewrite(home, registered, 1, change)
    coverage = verdicts_of(home, registered)["coverage"]
    assert (coverage.passed, coverage.numbers[fault]) == (False, 1)
    assert set(coverage.example_ids) == ids


def test_coverage_finds_a_file_that_is_not_the_one_recorded(home: Home) -> None:
    """Same rows, other bytes: the digest of the sealed file gives it away."""
    make_job(home.jobs)
    registered, _ = home.worked()
    path = next(iter((home.deployment.objects.root / "results").rglob("*.parquet")))
    pq.write_table(pq.read_table(path), path, compression="none")
    coverage = verdicts_of(home, registered)["coverage"]
    assert (coverage.passed, coverage.example_ids) == (False, (path.name,))


SCHEMA_FAULTS: dict[str, tuple[str, Callable[[list[Any]], list[Any]], str]] = {
    "enum": ("category", lambda values: ["weather", *values[1:]], "category: isin"),
    "null": ("summary", lambda values: [None, *values[1:]], "summary: not_nullable"),
    "length": ("summary", lambda values: ["x" * 201, *values[1:]], "summary: str_length"),
    "list": ("entities", lambda values: [["a"] * 6, *values[1:]], "entities: output_schema"),
}


@pytest.mark.parametrize("fault", SCHEMA_FAULTS)
def test_schema_finds_each_kind_of_violation_with_its_id(home: Home, fault: str) -> None:
    """Violations are counted by column and rule, and the record is named."""
    column, change, rule = SCHEMA_FAULTS[fault]
    make_job(home.jobs)
    registered, _ = home.worked()
    rewrite(home, registered, 2, lambda table: replace(table, column, change(table[column].to_pylist())))
    schema = verdicts_of(home, registered)["schema"]
    assert not schema.passed
    assert any(rule in name for name in schema.numbers), schema.numbers
    assert schema.example_ids[0] == record_id(10)


def test_schema_finds_a_column_of_another_type(home: Home) -> None:
    """A column that changed its type, or went away, is a violation of the whole file."""
    make_job(home.jobs)
    registered, _ = home.worked()
    rewrite(
        home,
        registered,
        0,
        lambda t: t.set_column(t.schema.get_field_index("_attempt"), "_attempt", pc.cast(t["_attempt"], pa.int64())),
    )
    rewrite(home, registered, 1, lambda t: t.drop_columns(["summary"]))
    schema = verdicts_of(home, registered)["schema"]
    assert {"violations: _attempt: type", "violations: summary: type"} <= set(schema.numbers)


def test_drift_compares_with_the_published_version(home: Home) -> None:
    """A distribution that moves beyond the threshold fails and blocks; within it passes."""
    gate = {"drift": {"psi_max": 0.25}}
    job = make_job(home.jobs, script=answers("bug"), gate=gate)
    first, _ = home.worked()
    verdicts_of(home, first)
    publish(home.deployment, first)
    assert "this version is the published one" in verdicts_of(home, first)["drift"].summary
    (job / "prompt.md").write_text((job / "prompt.md").read_text().replace("Sort", "Put"))
    make_job(home.jobs, script=answers("billing"), gate=gate, prompt=(job / "prompt.md").read_text())
    second, _ = home.worked()
    drift = verdicts_of(home, second)["drift"]
    assert not drift.passed
    assert drift.numbers["baseline_distribution"] == {"bug": 20}
    with pytest.raises(GateError, match="drift: PSI of category"):
        publish(home.deployment, second)
    assert home.deployment.ledger.publications.current("tiny") == first.job_version


def test_evaluation_counts_agreement_and_unanswered_records(home: Home) -> None:
    """A golden record without a result is wrong; one outside of the snapshot is left out."""
    script = answers("bug")
    script["records"][record_id(1)] = {"error": "out of memory"}
    golden = {record_id(0): "bug", record_id(1): "bug", record_id(2): "billing", "R-99999": "bug"}
    gate = {"evaluation": {"accuracy_min": 0.5}, "dead_letters": {"rate_max": 1.0}}
    make_job(home.jobs, golden=golden, script=script, gate=gate)
    registered, _ = home.worked()
    evaluation = verdicts_of(home, registered)["evaluation"]
    assert (evaluation.passed, evaluation.numbers["correct"], evaluation.numbers["golden"]) == (False, 1, 3)
    assert (evaluation.numbers["unanswered"], evaluation.numbers["golden_outside_snapshot"]) == (1, 1)
    assert evaluation.example_ids == (record_id(1), record_id(2))


def test_evaluation_without_a_golden_record_in_the_snapshot_fails(home: Home) -> None:
    """Nothing to compare is not agreement."""
    make_job(home.jobs, golden={"R-99999": "bug"})
    registered, _ = home.worked()
    evaluation = verdicts_of(home, registered)["evaluation"]
    said = "not met: none of the 1 golden records is in the snapshot; no baseline: nothing is published yet"
    assert (evaluation.passed, evaluation.summary) == (False, said)


def test_dead_letters_beyond_the_rate_block(home: Home) -> None:
    """The rate and the reasons are in the verdict."""
    script = {"records": {record_id(n): {"error": "out of memory"} for n in range(3)}}
    make_job(home.jobs, script=script, gate={"dead_letters": {"rate_max": 0.1}})
    registered, _ = home.worked()
    letters = verdicts_of(home, registered)["dead_letters"]
    assert (letters.passed, letters.numbers["rate"], letters.numbers["by_reason"]) == (False, 0.15, {"engine_error": 3})
    assert letters.summary == "3 of 20 records (15.00%; at most 10.00% allowed): 3 engine_error"


def test_a_check_that_does_not_block_only_warns(home: Home) -> None:
    """The owner may let a check warn; publishing then goes on."""
    script = {"records": {record_id(0): {"error": "out of memory"}}}
    make_job(home.jobs, script=script, gate={"dead_letters": {"rate_max": 0.0, "blocking": False}})
    registered, _ = home.worked()
    assert not verdicts_of(home, registered)["dead_letters"].passed
    assert publish(home.deployment, registered).changed


def test_record_text_in_ids_is_only_ever_data(home: Home, tmp_path: Path) -> None:
    """Ids and labels with quotes and SQL in them pass through every check unharmed."""
    evil = ["'; DROP TABLE snapshot; --", '"quoted"', "back\\slash", "emoji 🙂", "new\nline"]
    rows = [{"record_id": name, "subject": "s", "body": "b", "record_class": "c", "acl": name} for name in evil]
    make_job(home.jobs, records=rows, golden={evil[0]: "bug"})
    registered, _ = home.worked()
    assert verdicts_of(home, registered)["coverage"].passed
    assert [row["acl"] for row in home.sealed_rows(registered)] == sorted(evil)


@pytest.mark.parametrize("place", ["data", "footer"])
def test_one_flipped_byte_in_a_sealed_file_is_coverages_to_find(home: Home, place: str) -> None:
    """Whether or not the file can still be read, every check has a verdict, and coverage names the file."""
    make_job(home.jobs)
    registered, _ = home.worked()
    row = list(home.deployment.ledger.progress.shards(registered.job_version))[2]
    path = Path(home.deployment.objects.uri(str(row.sealed_key)))
    content = bytearray(path.read_bytes())
    content[10 if place == "data" else -20] ^= 0x40
    path.write_bytes(bytes(content))
    found = verdicts_of(home, registered)
    assert not found["coverage"].passed
    assert (found["coverage"].numbers["files_altered"], found["coverage"].numbers["files"]) == (1, [path.name])
    assert path.name in found["coverage"].summary
    with pytest.raises(GateError, match="coverage"):
        publish(home.deployment, registered)


@pytest.mark.parametrize("change", [lambda t: t.slice(1), lambda t: pa.concat_tables([t, t.slice(0, 1)])])
def test_coverage_names_the_file_whose_rows_are_not_those_recorded(
    home: Home, change: Callable[[pa.Table], pa.Table]
) -> None:
    make_job(home.jobs)
    registered, _ = home.worked()
    rewrite(home, registered, 1, change)
    coverage = verdicts_of(home, registered)["coverage"]
    assert (coverage.numbers["files_miscounted"], coverage.numbers["files_altered"]) == (1, 0)
    assert coverage.example_ids == (record_id(5),)


def test_labels_of_another_type_or_gone_are_not_the_sources(home: Home) -> None:
    """7 and '7' are not one label."""
    rows = [{**row, "acl": str(number)} for number, row in enumerate(make_records(20))]
    make_job(home.jobs, records=rows)
    registered, _ = home.worked()
    index = {"acl": lambda t: t.set_column(t.schema.get_field_index("acl"), "acl", pc.cast(t["acl"], pa.int64()))}
    rewrite(home, registered, 0, index["acl"])
    typed = verdicts_of(home, registered)["access_labels"]
    assert (typed.passed, typed.summary) == (False, "acl is of another type in 1 files")
    rewrite(home, registered, 1, lambda t: t.drop_columns(["acl"]))
    gone = verdicts_of(home, registered)["access_labels"]
    assert gone.numbers["differing"] == gone.numbers["label_lost"] == 5
    assert gone.example_ids == tuple(record_id(n) for n in range(5, 10))


def test_a_job_without_labels_says_so(home: Home) -> None:
    make_job(home.jobs, snapshot={"access_labels": []})
    registered, _ = home.worked()
    labels = verdicts_of(home, registered)["access_labels"]
    assert (labels.passed, labels.summary) == (True, "the snapshot pins no access labels, nothing to compare")


@pytest.mark.parametrize("check_name", ["coverage", "schema", "access_labels", "one_recipe"])
def test_what_always_blocks_cannot_be_set(home: Home, check_name: str) -> None:
    make_job(home.jobs, gate={check_name: {"blocking": False}})
    with pytest.raises(SpecError, match=check_name):
        home.pinned()


@pytest.mark.parametrize("name", ["Category", "category", "_file"])
def test_a_sealed_file_with_columns_that_sql_cannot_tell_apart_is_named(home: Home, name: str) -> None:
    """It is no file that we sealed; no check ends in the middle of it, and coverage says which it is."""
    make_job(home.jobs)
    registered, _ = home.worked()
    path = sorted((home.deployment.objects.root / "results").rglob("*.parquet"))[1]
    table = pq.read_table(path)
    pq.write_table(table.append_column(name, table["category"]), path)
    verdicts = verdicts_of(home, registered)
    assert not verdicts["coverage"].passed
    assert verdicts["coverage"].numbers["files_unreadable"] == 1
    assert path.name in verdicts["coverage"].numbers["files"]
    assert not verdicts["schema"].passed


def test_files_with_unequal_columns_are_no_table(home: Home) -> None:
    """A version sealed partly by a release that wrote a column less: readers could not open it."""
    make_job(home.jobs)
    registered, _ = home.worked()
    path = min((home.deployment.objects.root / "results").rglob("*.parquet"))
    pq.write_table(pq.read_table(path).drop_columns(["_record_class"]), path)
    coverage = verdicts_of(home, registered)["coverage"]
    assert "some files have a column that others lack" in coverage.summary
