"""The same ids through Parquet, JSONL and CSV; ids that are no text; files that cannot be read."""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.factories import make_job, make_records
from assets_tests.homes import Home
from assets_tests.hostile.corpus import TEXTS
from batch_assets.errors import SnapshotError, SpecError
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.storage.warehouse import open_warehouse

COLUMNS = ("record_id", "subject", "body", "record_class", "acl")
Rows = list[dict[str, Any]]


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_jsonl(path: Path, rows: Rows) -> None:
    """Nothing escaped that JSON lets through: line separators, C1 controls and noncharacters stand there raw."""
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def write_escaped_jsonl(path: Path, rows: Rows) -> None:
    path.write_bytes("".join(json.dumps(row) + "\r\n" for row in rows).encode("ascii"))


def write_csv(path: Path, rows: Rows) -> None:
    """With a byte order mark, as spreadsheets write it."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


FORMATS: dict[str, tuple[str, Callable[[Path, Rows], None]]] = {
    "parquet": ("hostile.parquet", write_parquet),
    "jsonl": ("hostile.jsonl", write_jsonl),
    "escaped jsonl": ("hostile.ndjson", write_escaped_jsonl),
    "csv": ("hostile.csv", write_csv),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_text_is_the_same_id_and_label_in_every_format(home: Home, kind: str) -> None:
    """From the file to the published table, character by character, each record once and in its order."""
    name, write = FORMATS[kind]
    job = make_job(home.jobs, records=1, shard_size=60, script={}, snapshot={"path": name}, decoding=WIDE)
    texts = list(TEXTS.values())
    rows = [dict(zip(COLUMNS, (text, "subject", text, text, text), strict=True)) for text in texts]
    write(job / name, rows)
    registered, _ = home.worked()
    version = home.deployment.version(registered)
    read = list(home.deployment.reader(version).read(range(len(texts)), COLUMNS))
    assert read == rows
    assert sorted(row["record_id"] for row in home.sealed_rows(registered)) == sorted(texts)
    assert all(verdict.passed for verdict in check(home.deployment, registered))
    publish(home.deployment, registered)
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        found = connection.execute("SELECT record_id, acl FROM published.tiny").fetchall()
    assert sorted(found) == sorted((text, text) for text in texts)


WIDE = {"input_tokens_max": 50_000}
INTEGERS: dict[str, pa.Array] = {
    "int64": pa.array([-(2**63), -1, 0, 7, 2**63 - 1], type=pa.int64()),
    "uint64": pa.array([0, 1, 2**63, 2**64 - 2, 2**64 - 1], type=pa.uint64()),
    "int8": pa.array([-128, -1, 0, 1, 127], type=pa.int8()),
    "uuid as text": pa.array([str(uuid.UUID(int=number)) for number in range(5)]),
    "dictionary": pa.array(["a", "b", "c", "d", "e"]).dictionary_encode(),
    "large text": pa.array(["a", "b", "c", "d", "e"], type=pa.large_string()),
}


@pytest.mark.parametrize("kind", INTEGERS)
def test_ids_keep_their_type(home: Home, kind: str) -> None:
    """An integer stays an integer in sealed files and tables; a dead letter names it in digits."""
    ids = INTEGERS[kind]
    values = ids.to_pylist()
    script = {"records": {str(values[-1]): {"error": "no"}}}
    job = make_job(home.jobs, records=5, script=script, gate={"dead_letters": {"rate_max": 1}})
    table = pa.Table.from_pylist(make_records(5))
    pq.write_table(
        table.set_column(table.schema.get_field_index("record_id"), "record_id", ids), job / "records.parquet"
    )
    registered, _ = home.worked()
    assert [row["record_id"] for row in home.sealed_rows(registered)] == sorted(values[:-1])
    assert [letter.record_id for letter in home.dead_letters(registered)] == [str(values[-1])]
    assert all(verdict.passed for verdict in check(home.deployment, registered))


UNSUPPORTED: dict[str, pa.Array] = {
    "bytes of a fixed length": pa.array([bytes([number] * 16) for number in range(3)], type=pa.binary(16)),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([n] * 16) for n in range(3)], type=pa.binary(16))
    ),
    "bytes": pa.array([b"a", b"b", b"c"]),
    "floats": pa.array([1.0, 2.0, float("nan")]),
    "decimals": pa.array([1, 2, 3]).cast(pa.decimal128(30, 2)),
    "booleans": pa.array([True, False, None]),
    "dates": pa.array([1, 2, 3]).cast(pa.int32()).cast(pa.date32()),
    "lists": pa.array([["a"], ["b"], ["c"]]),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_ids_of_other_types_are_refused_by_name(home: Home, kind: str) -> None:
    """The message says which column, which type it is, and which types it may be."""
    job = make_job(home.jobs, records=3, script={})
    table = pa.Table.from_pylist(make_records(3))
    column = table.schema.get_field_index("record_id")
    pq.write_table(table.set_column(column, "record_id", UNSUPPORTED[kind]), job / "records.parquet")
    with pytest.raises(SnapshotError, match=r"'record_id' is .*; it must be a string or an integer"):
        home.pinned()


GOOD_LINE = '{"record_id": "a", "subject": "s", "body": "b", "record_class": "c", "acl": "x"}'


def _line(**values: str) -> bytes:
    """A JSONL row with raw JSON values."""
    plain = {"record_id": '"b"', "subject": '"s"', "body": '"b"', "record_class": '"c"', "acl": '"x"'}
    return ("{" + ", ".join(f'"{name}": {raw}' for name, raw in {**plain, **values}.items()) + "}").encode()


BROKEN: dict[str, bytes] = {
    "half a surrogate pair in an id": _line(record_id='"\\ud800"'),
    "half a surrogate pair in a text": _line(body='"a\\udfffb"'),
    "half a surrogate pair in a label": _line(acl='"\\ud83d"'),
    "half a surrogate pair deep inside": _line(body='["\\ud83d"]'),
    "half a surrogate pair in a column's name": _line(**{"\\ud800": "1"}),
    "lists nested 100,000 deep": _line(body="[" * 100_000 + "]" * 100_000),
    "objects nested 100,000 deep": b'{"a":' * 100_000,
    "an integer of 10,000 digits": _line(body="1" * 10_000),
    "bytes that are not UTF-8": _line().replace(b'"b"', b'"\xff\xfe"'),
    "UTF-16": _line().decode().encode("utf-16"),
    "Latin-1": _line(body='"ü"').decode().encode("latin-1"),
    "a raw NUL": _line().replace(b'"b"', b'"\x00"'),
    "a raw escape": _line().replace(b'"b"', b'"\x1b[31m"'),
    "a list": b"[1, 2]",
    "half a line": b'{"record_id": "b',
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_jsonl_line_that_cannot_be_read_is_named(home: Home, kind: str) -> None:
    """File and line are named, on one line that prints; nothing is pinned."""
    job = make_job(home.jobs, records=1, script={}, snapshot={"path": "records.jsonl"})
    (job / "records.jsonl").write_bytes(GOOD_LINE.encode() + b"\n" + BROKEN[kind] + b"\n")
    with pytest.raises(SnapshotError, match=r"records\.jsonl, (line 2|after line [01]): ") as refusal:
        home.pinned()
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 1_000
    assert home.deployment.ledger.plans.list() == []


TWINS: dict[str, tuple[str, str]] = {
    "a number and its digits": ("1", '"1"'),
    "null and its name are two": ('"null"', '"null"'),
    "the same id in other escapes": ('"caf\\u00e9"', '"café"'),
    "10 kB twice": (json.dumps("x" * 10_000), json.dumps("x" * 10_000)),
    "an id that a terminal obeys": ('"\\u001b[31m\\u009b"', '"\\u001b[31m\\u009b"'),
}


@pytest.mark.parametrize("kind", TWINS)
def test_two_records_of_one_id_are_refused_in_words_that_print(home: Home, kind: str) -> None:
    """Also when they differ only before they are read; a long id is not printed whole."""
    job = make_job(home.jobs, records=1, script={}, snapshot={"path": "records.jsonl"})
    first, second = TWINS[kind]
    (job / "records.jsonl").write_bytes(_line(record_id=first) + b"\n" + _line(record_id=second) + b"\n")
    with pytest.raises(SnapshotError, match="not unique") as refusal:
        home.pinned()
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 1_000


def test_golden_labels_find_hostile_ids(home: Home) -> None:
    """Line separators of other alphabets inside an id do not cut a golden file's lines."""
    texts = list(TEXTS.values())
    rows = [dict(zip(COLUMNS, (text, "subject", "body", "c", "x"), strict=True)) for text in texts]
    answer = {"text": '{"category": "bug", "summary": "", "entities": []}'}
    script = {"records": {text: answer for text in texts if len(text) < 1_000}}
    golden = dict.fromkeys(script["records"], "bug")
    gate = {"evaluation": {"accuracy_min": 0.9}}  # what so many labels can show: not all
    job = make_job(home.jobs, records=rows, shard_size=500, script=script, golden=golden, gate=gate)
    lines = [json.dumps({"record_id": text, "category": "bug"}, ensure_ascii=False) for text in golden]
    (job / "golden.jsonl").write_bytes("\n".join(lines).encode())
    registered, _ = home.worked()
    (verdict,) = check(home.deployment, registered, only=["evaluation"])
    assert (verdict.passed, verdict.numbers["golden"], verdict.numbers["correct"]) == (True, len(lines), len(lines))


@pytest.mark.parametrize("line", ['{"record_id": "\\ud800", "category": "bug"}', '{"record_id": ' + "[" * 100_000])
def test_a_golden_line_that_cannot_be_read_is_named(home: Home, line: str) -> None:
    """File and line, in words that print."""
    job = make_job(home.jobs, records=1, script={}, golden={"R-00000": "bug"})
    (job / "golden.jsonl").write_text(f"{line}\n")
    with pytest.raises(SpecError, match=r"golden\.jsonl, line 1: ") as refusal:
        home.pinned()
    assert str(refusal.value).isprintable()
