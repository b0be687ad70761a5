"""Nightly changes: an incremental version is judged, merged with its base and published; newest wins, removals go."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.factories import PROMPT, make_job, make_records, record_id
from assets_tests.homes import Home
from assets_tests.workers import Command
from batch_assets.errors import BatchAssetsError, GateError, SnapshotError, SpecError, VersionError
from batch_assets.failpoints import arm
from batch_assets.operations import merge as merging
from batch_assets.operations.check import check
from batch_assets.operations.export import export
from batch_assets.operations.intervene import retry_dead_letters
from batch_assets.operations.pin_changes import pin_changes
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.sweep import sweep
from batch_assets.operations.whole import merged_manifest, published_files, sealed_files
from batch_assets.operations.work import work
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.warehouse import open_warehouse

Record = Mapping[str, Any]
FAILING = {"records": {record_id(number): {"error": "out of memory"} for number in (3, 104, 207)}}
GATE = {"dead_letters": {"rate_max": 1.0}}


def published_base(home: Home, **options: Any) -> RegisteredVersion:
    make_job(home.jobs, **{"records": 20, "gate": GATE, **options})
    registered, _ = home.worked()
    check(home.deployment, registered)
    publish(home.deployment, registered)
    return registered


def changes_file(home: Home, records: Sequence[Record], name: str = "changes.parquet") -> Path:
    path = home.jobs.parent / name
    pq.write_table(pa.Table.from_pylist([dict(record) for record in records]), path)
    return path


def removed_file(home: Home, ids: Sequence[str], name: str = "removed.txt") -> Path:
    path = home.jobs.parent / name
    path.write_text("".join(f"{one}\n" for one in ids))
    return path


def night(
    home: Home, changes: Path | None, removed: Path | None = None, *, publish_it: bool = True
) -> RegisteredVersion:
    """Pin, plan, work, check and publish, as a nightly round does."""
    pinned = pin_changes(home.deployment, home.deployment.job("tiny"), changes, removed=removed)
    registered = home.deployment.ledger.plans.get(pinned.job_version)
    plan(home.deployment, registered)
    registered = home.deployment.ledger.plans.get(pinned.job_version)
    work(home.deployment, registered)
    verdicts = check(home.deployment, registered)
    assert [verdict.summary for verdict in verdicts if verdict.blocking and not verdict.passed] == []
    if publish_it:
        publish(home.deployment, registered)
    return registered


def seen(home: Home) -> dict[str, dict[str, Any]]:
    """What readers see, by record id; no id twice."""
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        rows = connection.sql("SELECT * FROM published.tiny").to_arrow_table().to_pylist()
    by_id = {row["record_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def edited(number: int, text: str) -> dict[str, Any]:
    return {**make_records(number + 1)[number], "body": text, "acl": f"changed-{number}"}


def test_changes_replace_join_and_remove(home: Home) -> None:
    """A changed record has its new row and labels, a new one joins, a removed one is gone, all others are as they were."""
    base = published_base(home)
    before = seen(home)
    delta = night(
        home,
        changes_file(home, [edited(4, "another text"), edited(20, "a new record")]),
        removed_file(home, [record_id(7), "no such record"]),
    )
    after = seen(home)
    assert set(after) == set(before) - {record_id(7)} | {record_id(20)}
    untouched = set(before) - {record_id(4), record_id(7)}
    assert {one: after[one] for one in untouched} == {one: before[one] for one in untouched}
    for number in (4, 20):
        assert (after[record_id(number)]["_job_version"], after[record_id(number)]["acl"]) == (
            delta.job_version,
            f"changed-{number}",
        )
    assert {row["_job_version"] for row in before.values()} == {base.job_version}
    rollback(home.deployment, "tiny")
    assert seen(home) == before
    rollback(home.deployment, "tiny", to=delta.job_version)
    assert seen(home) == after


def test_twelve_nights_are_what_a_plain_computation_says(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, dead letters included, and with as many files as rows need, however many nights there were."""
    monkeypatch.setattr(merging, "FILE_ROWS", 16)
    monkeypatch.setattr(merging, "GROUP_ROWS", 8)
    published_base(home, records=40, script=FAILING, shard_size=7)
    rows = seen(home)
    dead = {record_id(3)}
    assert set(rows) | dead == {record_id(number) for number in range(40)}
    for number in range(12):
        dice = random.Random(number)
        known = sorted(set(rows) | dead)
        changed = {int(one[2:]) for one in dice.sample(known, 5)} | {100 + number * 9 + extra for extra in range(4)}
        removed = set(dice.sample(sorted(set(known) - {record_id(one) for one in changed}), 3))
        delta = night(
            home,
            changes_file(home, [edited(one, f"night {number}") for one in sorted(changed)]),
            removed_file(home, sorted(removed)),
        )
        own = {row["record_id"]: row for row in home.sealed_rows(delta)}
        gone = {record_id(one) for one in changed} | removed
        rows = {one: row for one, row in rows.items() if one not in gone} | own
        dead = {one for one in dead if one not in gone} | {letter.record_id for letter in home.dead_letters(delta)}
        assert seen(home) == rows
        manifest = merged_manifest(home.deployment, delta.job_version)
        assert manifest is not None
        keys = [home.deployment.objects.uri(file.key) for file in manifest.dead_letters]
        assert {row["record_id"] for key in keys for row in pq.read_table(key).to_pylist()} == dead
        files = list(published_files(home.deployment, delta.job_version))
        assert [file.rows for file in files[:-1]] == [16] * (len(files) - 1)
    assert {record_id(104), record_id(207)} & (set(rows) | dead) <= dead
    exported = home.jobs.parent / "out.parquet"
    assert export(home.deployment, "tiny", "parquet", exported).rows == len(rows)


def test_a_record_that_failed_in_its_new_form_has_no_old_row_left(home: Home) -> None:
    """Its old answer is to another question; the record is a dead letter of the whole."""
    published_base(home)
    make_job(home.jobs, records=20, gate=GATE, script={"records": {record_id(5): {"error": "out of memory"}}})
    delta = night(home, changes_file(home, [edited(5, "kills"), edited(6, "fine")]))
    assert record_id(5) not in seen(home)
    assert [letter.record_id for letter in home.dead_letters(delta)] == [record_id(5)]


def test_a_night_that_only_removes(home: Home) -> None:
    """No record to answer, no shard, and still a version of its own that is checked and published."""
    published_base(home)
    delta = night(home, None, removed_file(home, [record_id(1), record_id(2), record_id(2)]))
    assert (delta.records, delta.shards) == (0, 0)
    assert len(seen(home)) == 18
    again = night(home, changes_file(home, [edited(1, "back again")]))
    assert len(seen(home)) == 19
    assert home.deployment.ledger.plans.get(again.job_version).base_version == delta.job_version


def test_the_same_changes_are_the_same_version(home: Home) -> None:
    """Pinned twice it is one version; with another removal, or on another base, it is another."""
    published_base(home)
    changes, job = changes_file(home, [edited(4, "text")]), home.deployment.job("tiny")
    first = pin_changes(home.deployment, job, changes, batch="2026-11-30")
    assert pin_changes(home.deployment, job, changes, batch="some other name").job_version == first.job_version
    other = pin_changes(home.deployment, job, changes, removed=removed_file(home, [record_id(9)]))
    assert other.job_version != first.job_version
    listed = home.jobs.parent / "removed.csv"
    listed.write_text(f"record_id\n{record_id(9)}\n")
    assert pin_changes(home.deployment, job, changes, removed=listed).job_version == other.job_version


def test_changes_to_something_else_are_not_published(home: Home) -> None:
    """Two deltas on one base: the second would take the first away again, so it has to be pinned anew."""
    published_base(home)
    first = night(home, changes_file(home, [edited(1, "first")], "one.parquet"), publish_it=False)
    second = night(home, changes_file(home, [edited(2, "second")], "two.parquet"), publish_it=False)
    publish(home.deployment, first)
    with pytest.raises(
        GateError, match=f"holds changes to {first.base_version}, but tiny shows {first.job_version} now"
    ):
        publish(home.deployment, second)
    assert len({row["acl"] for row in seen(home).values() if row["record_id"] in (record_id(1), record_id(2))}) == 2


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ({"prompt": PROMPT.replace("Sort", "Put")}, "prompt"),
        ({"decoding": {"input_tokens_max": 1000}}, "decoding"),
        ({"snapshot": {"access_labels": []}}, "snapshot columns"),
    ],
)
def test_a_changed_recipe_is_refused_with_the_command_for_a_backfill(
    home: Home, edit: dict[str, Any], named: str
) -> None:
    """Rows that answer two questions must not stand in one table."""
    published_base(home)
    make_job(home.jobs, records=20, gate=GATE, **edit)
    with pytest.raises(SpecError, match=rf"{named} changed since .* `batch-assets pin tiny`"):
        night(home, changes_file(home, [edited(4, "text")]))
    assert len(home.deployment.ledger.plans.list("tiny")) == 1


def _no_such_file(home: Home) -> tuple[Path | None, Path | None]:
    return None, home.jobs / "nowhere.txt"


def _number_ids(home: Home) -> tuple[Path | None, Path | None]:
    return changes_file(home, [{**edited(1, "x"), "record_id": 1}]), None


def _other_labels(home: Home) -> tuple[Path | None, Path | None]:
    return changes_file(home, [{**edited(1, "x"), "acl": 7}]), None


def _nothing(home: Home) -> tuple[Path | None, Path | None]:
    return None, removed_file(home, [])


def _null_removed(home: Home) -> tuple[Path | None, Path | None]:
    path = home.jobs.parent / "removed.parquet"
    pq.write_table(pa.table({"record_id": pa.array(["a", None])}), path)
    return None, path


def _other_column(home: Home) -> tuple[Path | None, Path | None]:
    path = home.jobs.parent / "removed.jsonl"
    path.write_text('{"id": "R-00001"}\n')
    return None, path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_no_such_file, "There is no file .*nowhere.txt with the ids to remove"),
        (_number_ids, "column 'record_id' as int64, but in .* it is string"),
        (_other_labels, "column 'acl' as int64, but in .* it is string"),
        (_nothing, "no changed record and no removed id of tiny was given"),
        (_null_removed, "row 1: a null is no record id"),
        (_other_column, "line 1: there is no 'record_id' in it"),
    ],
)
def test_changes_that_do_not_fit_are_refused(home: Home, make: Any, message: str) -> None:
    """With what is wrong and where, and nothing is pinned."""
    published_base(home)
    with pytest.raises(BatchAssetsError, match=message):
        night(home, *make(home))
    assert len(home.deployment.ledger.plans.list("tiny")) == 1


def test_a_record_cannot_be_changed_and_removed(home: Home) -> None:
    """Which of the two was meant is not ours to guess."""
    published_base(home)
    with pytest.raises(SnapshotError, match=r"1 records are both changed and removed .*R-00004"):
        night(home, changes_file(home, [edited(4, "text")]), removed_file(home, [record_id(4), record_id(5)]))


def test_changes_need_something_published(home: Home) -> None:
    """Without a whole version there is nothing to add to."""
    make_job(home.jobs)
    with pytest.raises(VersionError, match="nothing published that changes could be added to"):
        pin_changes(home.deployment, home.deployment.job("tiny"), changes_file(home, [edited(1, "x")]))


def test_a_merge_that_wrote_other_rows_is_not_published(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged is compared with what was written, row for row."""
    base = published_base(home)
    delta = night(home, changes_file(home, [edited(4, "text")]), publish_it=False)
    write = pq.ParquetWriter.write_table

    def forgetful(writer: pq.ParquetWriter, table: pa.Table, row_group_size: int | None = None) -> None:
        write(writer, table.slice(0, table.num_rows - 1), row_group_size)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", forgetful)
    with pytest.raises(BatchAssetsError, match="do not hold the 20 rows of whole"):
        publish(home.deployment, delta)
    monkeypatch.undo()
    assert home.deployment.ledger.publications.current("tiny") == base.job_version
    publish(home.deployment, delta)
    assert len(seen(home)) == 20


def test_integer_ids_stay_integers(home: Home) -> None:
    """The type of the record id goes through pin, merge and catalog; a text file of removals is read as numbers."""
    records = [{**record, "record_id": number} for number, record in enumerate(make_records(10))]
    published_base(home, records=records)
    changed = {**records[3], "body": "changed"}
    night(home, changes_file(home, [changed]), removed_file(home, ["7"]))
    assert sorted(seen(home)) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    with duckdb.connect() as connection:
        files = [home.deployment.objects.uri(file.key) for file in published_files(home.deployment, _current(home))]
        described = connection.execute(f"DESCRIBE SELECT * FROM read_parquet({files})").fetchall()
    assert ("record_id", "BIGINT") in {(row[0], row[1]) for row in described}
    with pytest.raises(SnapshotError, match=r"line 1: .*seven.* is no int64"):
        night(home, None, removed_file(home, ["seven"]))


def _current(home: Home) -> str:
    return str(home.deployment.ledger.publications.current("tiny"))


def test_a_base_that_does_not_fit_is_found_in_the_whole(home: Home) -> None:
    """A record that the base has twice would be twice in what readers see; a clean merge has no such fault."""
    base = published_base(home)
    delta = night(
        home, changes_file(home, [edited(4, "text")]), removed_file(home, [record_id(7), "unknown"]), publish_it=False
    )
    clean = check(home.deployment, delta, only=["coverage"])[0]
    assert clean.passed
    assert clean.numbers["merged"] == {
        "rows": 19, "dead_letters": 0, "doubled": 0, "not_removed": 0, "lost": 0, "removed": 2, "removed_unknown": 1,
    }  # fmt: skip
    file = next(published_files(home.deployment, base.job_version))
    path = Path(home.deployment.objects.uri(file.key))
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(1, 1)]), path, compression="none")
    home.deployment.ledger.database.close()
    with pytest.raises(BatchAssetsError, match="not as large as it was when it was sealed"):
        check(home.deployment, delta, only=["coverage"])


def test_a_merge_before_dead_letters_were_put_back_is_not_what_is_published(home: Home) -> None:
    """It was made, and then publishing failed; by the time of the next try the version holds more."""
    published_base(home)
    script = {"records": {record_id(5): {"error": "out of memory"}}}
    make_job(home.jobs, records=20, gate=GATE, script=script)
    delta = night(home, changes_file(home, [edited(5, "fails at first")]), publish_it=False)
    arm(
        "publish.before_commit=lose; publish.before_commit=lose@2; publish.before_commit=lose@3; publish.before_commit=lose@4"
    )
    try:
        with pytest.raises(BatchAssetsError, match="the answer was lost"):
            publish(home.deployment, delta)
    finally:
        arm("")
    assert home.deployment.ledger.file_sets.of(delta.job_version) is not None
    make_job(home.jobs, records=20, gate=GATE, script={})
    retry_dead_letters(home.deployment, delta, "engine_error")
    work(home.deployment, delta)
    check(home.deployment, delta)
    publish(home.deployment, delta)
    assert seen(home)[record_id(5)]["_job_version"] == delta.job_version
    assert len(seen(home)) == 20


def test_a_publisher_killed_while_it_merges_leaves_readers_alone(home: Home) -> None:
    """At each step the next try merges anew, or takes the set that was recorded, and publishes the same rows."""
    base = published_base(home)
    before = seen(home)
    delta = night(home, changes_file(home, [edited(4, "text")]), removed_file(home, [record_id(7)]), publish_it=False)
    for step in ("merge.after_part", "merge.before_record", "file_set.before_commit", "file_set.after_commit"):
        killed = Command(home, "publish", delta.job_version, failpoints=f"{step}=kill")
        assert killed.wait(60) == -9, step
        assert home.deployment.ledger.publications.current("tiny") == base.job_version
        assert seen(home) == before
    merged = home.deployment.ledger.file_sets.of(delta.job_version)
    publish(home.deployment, delta)
    assert home.deployment.ledger.file_sets.of(delta.job_version) == merged
    assert set(seen(home)) == set(before) - {record_id(7)}
    assert seen(home)[record_id(4)]["acl"] == "changed-4"
    swept = sweep(home.deployment, "tiny", grace_h=0)
    left = {one.key for one in home.deployment.objects.list("merged")}
    assert merged is not None
    kept = {file.key for file in published_files(home.deployment, delta.job_version)} | {merged.manifest_key}
    assert left == kept, swept


def test_a_bad_night_is_found_although_the_whole_hardly_moves(home: Home) -> None:
    """Thirty answers that are all one category, in six hundred; a night like the days before passes."""
    gate = {"drift": {"category_move_max": 1.0, "total_variation_max": 1.0, "length_distance_max": 1.0}}
    published_base(home, records=600, shard_size=600, gate=gate)
    changes = changes_file(home, [edited(number, "text") for number in range(0, 600, 20)])
    assert night(home, changes, publish_it=False).records == 30
    answer = '{"category": "billing", "summary": "A bill.", "entities": []}'
    script = {"records": {record_id(number): {"text": answer} for number in range(1, 600, 20)}}
    make_job(home.jobs, records=600, shard_size=600, gate=gate, script=script)
    pinned = pin_changes(
        home.deployment,
        home.deployment.job("tiny"),
        changes_file(home, [edited(number, "text") for number in range(1, 600, 20)], "bad.parquet"),
    )
    plan(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
    registered = home.deployment.ledger.plans.get(pinned.job_version)
    work(home.deployment, registered)
    (verdict,) = check(home.deployment, registered, only=["drift"])
    assert not verdict.passed
    assert "PSI of the 30 changes by themselves" in verdict.summary
    assert "100.0% are billing" in verdict.summary
    assert verdict.numbers["psi"] < 0.05
    assert verdict.example_ids == tuple(record_id(number) for number in range(1, 200, 20))


def test_damage_of_what_is_merged_is_found_before_it_gets_new_digests(home: Home) -> None:
    """One byte of a base's file, of the version's own file, or of the list of removals: nothing is published."""
    base = published_base(home)
    delta = night(home, changes_file(home, [edited(4, "text")]), removed_file(home, [record_id(7)]), publish_it=False)
    own = next(sealed_files(home.deployment, delta.job_version)).key
    removed = home.deployment.version(delta).changes.removed.key
    for key in (next(sealed_files(home.deployment, base.job_version)).key, own, removed):
        path = Path(home.deployment.objects.uri(key))
        whole = path.read_bytes()
        middle = len(whole) // 3
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(BatchAssetsError, match=path.name):
            publish(home.deployment, delta)
        path.write_bytes(whole)
        assert home.deployment.ledger.publications.current("tiny") == base.job_version
    publish(home.deployment, delta)
    assert len(seen(home)) == 19


def test_ids_with_line_ends_are_told_apart_in_a_list_of_removals(home: Home) -> None:
    """["a\\nb"] and ["a", "b"] are two lists, and so two versions."""
    records = [{**record, "record_id": name} for record, name in zip(make_records(3), ("a", "b", "a\nb"), strict=True)]
    published_base(home, records=records)
    versions = set()
    for number, ids in enumerate((["a\nb"], ["a", "b"])):
        path = home.jobs.parent / f"removed{number}.parquet"
        pq.write_table(pa.table({"record_id": ids}), path)
        versions.add(pin_changes(home.deployment, home.deployment.job("tiny"), None, removed=path).job_version)
    assert len(versions) == 2


def test_a_night_that_leaves_no_row_is_published_as_a_table_without_rows(home: Home) -> None:
    """All that is left were dead letters, or nothing at all; the owner says that this is meant."""
    published_base(home, records=5, script=FAILING)
    gone = removed_file(home, [record_id(number) for number in range(5) if number != 3])
    pinned = pin_changes(home.deployment, home.deployment.job("tiny"), None, removed=gone)
    plan(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
    registered = home.deployment.ledger.plans.get(pinned.job_version)
    check(home.deployment, registered)
    publish(home.deployment, registered, override="the customers have left")
    assert seen(home) == {}


def test_ids_to_remove_that_nobody_has_are_told(home: Home) -> None:
    """A list in another spelling removes nothing, and would look like a success."""
    published_base(home)
    pinned = pin_changes(
        home.deployment, home.deployment.job("tiny"), None, removed=removed_file(home, [record_id(1), "r-00002"])
    )
    (note,) = pinned.notes
    assert note.startswith("1 of the 2 ids to remove have no row in ")


def test_dead_letters_put_back_while_it_is_merged_end_the_merge(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that were read are no longer the version's; nothing of them is recorded."""
    published_base(home)
    make_job(home.jobs, records=20, gate=GATE, script={"records": {record_id(5): {"error": "out of memory"}}})
    delta = night(home, changes_file(home, [edited(5, "fails")]), publish_it=False)

    def put_back(name: str) -> None:
        if name == "merge.before_record":
            retry_dead_letters(home.deployment, delta, "engine_error")

    monkeypatch.setattr(merging, "failpoint", put_back)
    with pytest.raises(GateError, match="was changed while it was merged"):
        publish(home.deployment, delta)
    assert home.deployment.ledger.file_sets.of(delta.job_version) is None
