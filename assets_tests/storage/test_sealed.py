"""Sealed shards: typed, in record-id order, labelled like their source, written once."""

from __future__ import annotations

import datetime
from enum import Enum
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from assets_tests.ledgers import small_version
from batch_assets.core.output_schema import SchemaSourceError, enum_fields, load_output_model
from batch_assets.core.spec import SnapshotSpec
from batch_assets.errors import ShardTrouble
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.outcomes import StoredResult
from batch_assets.storage.sealed import Sealer
from batch_assets.storage.snapshots import SnapshotReader, pin_snapshot
from batch_assets.storage.typed import UnsupportedType, arrow_fields, arrow_type, to_arrow_value


class Mood(Enum):
    CALM = "calm"
    CROSS = "cross"


class Person(BaseModel):
    name: str
    age: int | None = None


class Everything(BaseModel):
    category: Literal["a", "b"]
    mood: Mood | None
    people: list[Person]
    owner: Person | None = None
    tags: list[str] | None = None
    score: float
    count: int
    day: datetime.date
    ok: bool


def stored(record_id: str, payload: str) -> StoredResult:
    return StoredResult(
        record_id=record_id, payload=payload, attempt=1, finish_reason="stop", engine="e", stored_at=1_000_000.25
    )


FULL = Everything(
    category="a",
    mood=Mood.CROSS,
    people=[Person(name="Ann", age=3), Person(name="Bo")],
    owner=Person(name="Cy"),
    tags=["x"],
    score=1.5,
    count=2,
    day=datetime.date(2026, 1, 2),
    ok=True,
)
BARE = Everything(category="b", mood=None, people=[], score=0, count=0, day=datetime.date(2026, 1, 3), ok=False)


@pytest.fixture
def sealer(tmp_path: Path) -> Sealer:
    table = pa.table({"id": [30, 4, 100], "body": ["x", "y", "z"], "acl": ["red", "blue", "red"]})
    pq.write_table(table, tmp_path / "a.parquet")
    objects = LocalObjects(tmp_path / "objects")
    spec = SnapshotSpec(path="a.parquet", record_id="id", text=("body",), access_labels=("acl",))
    pin = pin_snapshot(spec, tmp_path, objects)
    version = small_version(records=3, shard_size=3).model_copy(update={"snapshot": pin})
    return Sealer(version, Everything, SnapshotReader(pin, objects), objects)


def test_a_sealed_file_is_typed_ordered_and_labelled(sealer: Sealer, tmp_path: Path) -> None:
    """Nested values, enums, optionals and dates keep their types; each row has its source's labels."""
    sealed = sealer.seal(0, [stored("30", FULL.model_dump_json()), stored("100", BARE.model_dump_json())])
    rows = pq.read_table(tmp_path / "objects" / sealed.key).to_pylist()
    assert [(row["id"], row["acl"]) for row in rows] == [(30, "red"), (100, "red")]
    assert rows[0]["people"] == [{"name": "Ann", "age": 3}, {"name": "Bo", "age": None}]
    assert (rows[0]["mood"], rows[1]["mood"], rows[1]["owner"], rows[1]["tags"]) == ("cross", None, None, None)
    assert (rows[0]["day"], rows[0]["_shard"], sealed.rows) == (datetime.date(2026, 1, 2), 0, 2)


@pytest.mark.parametrize(
    ("classes", "texts"),
    [
        (pa.array(["x", None, "y"]).dictionary_encode(), ["y", "x"]),
        (pa.array([1, 2, None]), [None, "1"]),
        (pa.array([b"\xff", b"", b""]), ["", "\\xFF"]),
        (pa.array([["a"], [], None]), [None, "[a]"]),
    ],
)
def test_each_row_carries_its_record_class_as_text(classes: pa.Array, texts: list[str | None], tmp_path: Path) -> None:
    """Whatever the class column's type; a file that an earlier release sealed without it still stands."""
    pq.write_table(pa.table({"id": [30, 4, 10], "body": ["x", "y", "z"], "class": classes}), tmp_path / "a.parquet")
    objects = LocalObjects(tmp_path / "objects")
    pin = pin_snapshot(
        SnapshotSpec(path="a.parquet", record_id="id", text=("body",), record_class="class"), tmp_path, objects
    )
    version = small_version(records=3, shard_size=3).model_copy(update={"snapshot": pin})
    sealer = Sealer(version, Everything, SnapshotReader(pin, objects), objects)
    answers = [stored("30", FULL.model_dump_json()), stored("10", BARE.model_dump_json())]
    sealed = sealer.seal(0, answers)
    path = tmp_path / "objects" / sealed.key
    table = pq.read_table(path)
    assert table.schema.field("_record_class") == pa.field("_record_class", pa.string())
    assert table.column("_record_class").to_pylist() == texts
    path.unlink()
    pq.write_table(table.drop_columns(["_record_class"]), path)
    assert sealer.seal(0, answers).size == path.stat().st_size


def test_sealing_twice_gives_the_same_file(sealer: Sealer) -> None:
    """A second sealer finds its own rows there and records the same digest."""
    results = [stored("4", BARE.model_dump_json())]
    assert sealer.seal(0, results) == sealer.seal(0, results)


def test_a_file_with_other_rows_is_never_overwritten(sealer: Sealer) -> None:
    """Put if absent: what stands stays, and the difference is an error."""
    sealer.seal(0, [stored("4", BARE.model_dump_json())])
    with pytest.raises(ShardTrouble, match="other rows than the ledger has"):
        sealer.seal(0, [stored("4", FULL.model_dump_json())])


def test_a_shard_without_results_is_sealed_too(sealer: Sealer, tmp_path: Path) -> None:
    """All records dead: the file has no rows, but its columns."""
    sealed = sealer.seal(0, [])
    assert pq.read_table(tmp_path / "objects" / sealed.key).num_rows == 0


def test_a_result_of_another_shard_is_not_sealed(sealer: Sealer) -> None:
    """A result whose record is not in the shard's rows is an error, not a lost row."""
    with pytest.raises(ShardTrouble, match="only 0 of them are in the snapshot"):
        sealer.seal(0, [stored("31", BARE.model_dump_json())])


def test_a_field_without_one_column_type_is_named() -> None:
    """A union of types cannot be a column; the message says which field."""

    class Mixed(BaseModel):
        value: int | str

    with pytest.raises(UnsupportedType, match="field 'value'"):
        arrow_fields(Mixed)
    assert arrow_type(dict[str, int]) == pa.map_(pa.string(), pa.int64())
    assert to_arrow_value({"b", "a"}) == ["a", "b"]


SOURCE = "from typing import Literal\nfrom pydantic import BaseModel\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "found: none"),
        (SOURCE + "class A(BaseModel):\n    a: int\nclass B(BaseModel):\n    a: int", "found: A, B"),
        ("import nothing_like_this", "ModuleNotFoundError"),
        (SOURCE + "class Output(BaseModel):\n    pass", "at least one field"),
    ],
)
def test_a_schema_file_without_a_model_is_refused(source: str, message: str) -> None:
    """The message says what was looked for and what was found."""
    with pytest.raises(SchemaSourceError, match=message):
        load_output_model(source, where="output_schema.py")


def test_the_only_model_or_the_one_named_output_is_taken() -> None:
    """Helpers beside `Output` are fine; enum fields are found through optionals."""
    part = "class Part(BaseModel):\n    n: int\n"
    source = SOURCE + part + "class Output(BaseModel):\n    kind: Literal['x', 'y'] | None\n    parts: list[Part]"
    model = load_output_model(source, where="output_schema.py")
    assert (model.__name__, enum_fields(model)) == ("Output", {"kind": ("x", "y")})
