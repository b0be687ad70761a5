"""Snapshots: what is accepted, what is refused and how, and reading by row range."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.spec import SnapshotSpec
from batch_assets.errors import SnapshotError
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.objects import Objects
from batch_assets.storage.scan import scan
from batch_assets.storage.snapshots import SnapshotReader, pin_snapshot


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return LocalObjects(tmp_path / "objects")


def spec(path: str, **others: Any) -> SnapshotSpec:
    return SnapshotSpec.model_validate({"path": path, "record_id": "id", "text": ["body"], **others})


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


ROWS = [{"id": f"r{n}", "body": f"text {n}", "n": n} for n in range(1200)]


def test_jsonl_csv_and_parquet_give_the_same_records(tmp_path: Path, objects: Objects) -> None:
    """The same rows in three formats read back alike (CSV knows only text)."""
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("id,body,n\n" + "".join(f"{r['id']},{r['body']},{r['n']}\n" for r in ROWS))
    for name in ("a.jsonl", "a.parquet"):
        reader = SnapshotReader(pin_snapshot(spec(name), tmp_path, objects), objects)
        assert list(reader.read(range(1200), ["id", "body", "n"])) == ROWS
    csv = SnapshotReader(pin_snapshot(spec("a.csv"), tmp_path, objects), objects)
    assert list(csv.read(range(3, 4), ["id", "n"])) == [{"id": "r3", "n": "3"}]


def test_the_same_content_gives_the_same_pin_wherever_it_lies(tmp_path: Path, objects: Objects) -> None:
    """Digests depend on bytes, not on paths; the row limit is part of what is pinned."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "a.jsonl", ROWS)
    one, two = (pin_snapshot(spec("a.jsonl"), tmp_path / folder, objects) for folder in ("one", "two"))
    assert one.files == two.files
    limited = pin_snapshot(spec("a.jsonl", rows=5), tmp_path / "one", objects)
    assert (one.rows, limited.rows) == (1200, 5)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4), group=st.integers(1, 17), data=st.data())
def test_any_row_range_reads_exactly_its_rows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, data: st.DataObject
) -> None:
    """Whatever the files and row groups, a range gives its rows, in order, and no others."""
    folder = tmp_path_factory.mktemp("snapshot")
    number, total = 0, sum(sizes)
    for index, size in enumerate(sizes):
        rows = [{"id": number + n, "body": "x"} for n in range(size)]
        number += size
        table = pa.Table.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("body", pa.string())]))
        pq.write_table(table, folder / f"{index}.parquet", row_group_size=group)
    objects = LocalObjects(folder / "objects")
    if total == 0:
        with pytest.raises(SnapshotError, match="no rows"):
            pin_snapshot(spec("*.parquet"), folder, objects)
        return
    reader = SnapshotReader(pin_snapshot(spec("*.parquet"), folder, objects), objects)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    assert [row["id"] for row in reader.read(range(start, stop), ["id"])] == list(range(start, stop))


BROKEN = {
    "a.jsonl": ('{"id": "1", "body": "a"}\n{"id": "2", "bo', r"a\.jsonl, line 2: not valid JSON"),
    "b.jsonl": ('{"id": "1", "body": "a"}\n["2"]\n', r"b\.jsonl, line 2: a JSON list"),
    "c.csv": ("id,body\n1,a\n2,b,c\n", r"c\.csv, line 3: 3 fields where the header has 2"),
    "d.csv": ('id,body\n1,a\n2,"open', r"d\.csv, line 3: not valid CSV"),
    "e.csv": ("id,id\n1,a\n", "names column 'id' twice"),
    "f.parquet": ("PAR1 not really", "is not a readable Parquet file"),
    "g.txt": ("id", "Set snapshot.format"),
    "h.jsonl": ("\n", "has no rows"),
    "i.jsonl": ('{"id": "1", "body": "a"}\n{"id": "2", "body": "\\ud800"}\n', r"i\.jsonl, line 2: the value of 'body'"),
    "j.jsonl": ('{"id": 1, "body": "a"}\n{"id": 99999999999999999999, "body": "b"}\n', r"line 2: the value of 'id'"),
    "k.jsonl": ('{"id": "1", "body": "a", "file_row_number": 1}\n', "cannot be named 'file_row_number'"),
}


@pytest.mark.case("C06")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_name_and_line(tmp_path: Path, objects: Objects, name: str) -> None:
    """The error names file and line, and nothing is imported."""
    content, message = BROKEN[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(SnapshotError, match=message):
        pin_snapshot(spec(name), tmp_path, objects)
    assert [path for path in objects.root.rglob("*") if path.is_file()] == []


def test_text_that_is_not_utf8_is_refused(tmp_path: Path, objects: Objects) -> None:
    """A Latin-1 file is not guessed at."""
    (tmp_path / "a.jsonl").write_bytes('{"id": "1", "body": "é"}\n'.encode("latin-1"))
    with pytest.raises(SnapshotError, match="not UTF-8"):
        pin_snapshot(spec("a.jsonl"), tmp_path, objects)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"record_id": "key"}, "no column 'key'.*The columns are id, body, n"),
        ({"text": ["subject"]}, "no column 'subject'"),
        ({"access_labels": ["acl"]}, "no column 'acl'"),
        ({"path": "nothing.parquet"}, "matches no file"),
    ],
)
def test_columns_and_files_that_do_not_exist_are_named(
    tmp_path: Path, objects: Objects, change: dict[str, Any], message: str
) -> None:
    """The error says what was looked for and what there is."""
    write_jsonl(tmp_path / "a.jsonl", ROWS[:2])
    with pytest.raises(SnapshotError, match=message):
        pin_snapshot(spec(**{"path": "a.jsonl", **change}), tmp_path, objects)


def test_a_record_id_must_be_text_or_integer(tmp_path: Path, objects: Objects) -> None:
    """A float id is refused: two spellings of one number must not be two records."""
    pq.write_table(pa.table({"id": [1.0], "body": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(SnapshotError, match="must be a string or an integer"):
        pin_snapshot(spec("a.parquet"), tmp_path, objects)


def test_files_with_different_columns_are_refused(tmp_path: Path, objects: Objects) -> None:
    """Both files, the column and both types are named; dictionary encoding is no difference."""
    table = pa.table({"id": ["a"], "body": ["x"]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.set_column(0, "id", pa.array(["b"]).dictionary_encode()), tmp_path / "b.parquet")
    reader = SnapshotReader(pin_snapshot(spec("*.parquet"), tmp_path, objects), objects)
    assert [row["id"] for row in reader.read(range(2), ["id"])] == ["a", "b"]
    pq.write_table(pa.table({"id": ["c"], "body": [1]}), tmp_path / "c.parquet")
    with pytest.raises(SnapshotError, match=r"differ in column 'body': string in .*a\.parquet, int64 in .*c\.parquet"):
        pin_snapshot(spec("*.parquet"), tmp_path, objects)


def test_a_file_that_changed_after_pinning_is_noticed(tmp_path: Path, objects: Objects) -> None:
    """Fewer rows than pinned, or a missing file, is an error before any work."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    reader = SnapshotReader(pin_snapshot(spec("a.parquet"), tmp_path, objects), objects)
    pq.write_table(pa.Table.from_pylist(ROWS[:-1]), path)
    with pytest.raises(SnapshotError, match=r"a\.parquet has .* were pinned"):
        reader.verify_files()
    path.unlink()
    with pytest.raises(SnapshotError, match=r"a\.parquet is missing"):
        list(reader.read(range(1), ["id"]))


@pytest.mark.case("C07", "C08")
def test_duplicate_and_null_ids_are_found_with_their_rows(tmp_path: Path, objects: Objects) -> None:
    """The scan counts them all and gives examples; `"17"` and `" 17"` are two ids."""
    ids: list[str | None] = ["a", "17", " 17", None, "b", "a", None, "b", "a"]
    pq.write_table(pa.table({"id": ids, "body": ["x"] * 9}), tmp_path / "a.parquet")
    reader = SnapshotReader(pin_snapshot(spec("a.parquet"), tmp_path, objects), objects)
    with scan(reader, tmp_path / "scratch") as snapshot:
        problems = snapshot.id_problems()
    assert problems.duplicates == (("a", 0, 8), ("b", 4, 7))
    assert (problems.nulls, problems.null_rows, problems.duplicated_ids) == (2, (3, 6), 2)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_only_long_or_empty_records_are_looked_at(tmp_path: Path, objects: Objects) -> None:
    """Within the byte bound nothing can exceed the cap, so nothing is tokenized; row numbers span files."""
    pq.write_table(pa.table({"id": ["0", "1"], "body": ["short", "x" * 50]}), tmp_path / "a.parquet")
    bodies = ["\u3000\t", "é" * 10, None, "<|end|> ", "fine"]
    pq.write_table(pa.table({"id": list("23456"), "body": bodies}), tmp_path / "b.parquet")
    pin = pin_snapshot(spec("*.parquet", rows=6), tmp_path, objects)
    with scan(SnapshotReader(pin, objects), tmp_path / "scratch") as snapshot:
        found = list(
            snapshot.suspicious(columns=["id", "body"], text=["body"], bytes_max=20, control_tokens=["<|end|>"])
        )
    # "é" * 10 has 20 bytes, and its id one more.
    assert [(row, record["id"]) for row, record in found] == [(1, "1"), (2, "2"), (3, "3"), (4, "4"), (5, "5")]
