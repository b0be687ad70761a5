"""Typed tables: what pydantic has is what Arrow and DuckDB read back, for whatever output schema."""

from __future__ import annotations

import datetime
import itertools
import json
import os
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import duckdb
import pandas as pd
import pandera.errors
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, Field, NaiveDatetime, RootModel, create_model

from assets_tests.factories import make_job, record_id
from assets_tests.homes import Home
from assets_tests.ledgers import small_version
from assets_tests.typed_models import Example, examples
from batch_assets.core.spec import SnapshotSpec
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.outcomes import StoredResult
from batch_assets.storage.sealed import Sealer, sealed_schema
from batch_assets.storage.snapshots import SnapshotReader, pin_snapshot
from batch_assets.storage.typed import UnsupportedType, arrow_fields, arrow_type, to_arrow_value
from batch_assets.storage.warehouse import open_warehouse
from batch_assets.validation.evidence import is_typed
from batch_assets.validation.table_schema import table_schema
from batch_assets.worker.records import check_storable

ENUM = pa.dictionary(pa.int32(), pa.string())
IDS = (2**63 - 1, -5, 30)


class Table:
    """Seals answers of any model for the records of one small snapshot."""

    def __init__(self, folder: Path) -> None:
        pq.write_table(pa.table({"record id": [*IDS], "body": ["x"] * len(IDS)}), folder / "a.parquet")
        self._objects = LocalObjects(folder / "objects")
        spec = SnapshotSpec(path="a.parquet", record_id="record id", text=("body",))
        pin = pin_snapshot(spec, folder, self._objects)
        self._reader = SnapshotReader(pin, self._objects)
        self._version = small_version(records=len(IDS), shard_size=len(IDS)).model_copy(update={"snapshot": pin})
        self._times = itertools.count()

    def seal(self, model: type[BaseModel], answers: list[str]) -> Path:
        """The sealed file of these answers, which are stored as the worker would store them."""
        for answer in answers:
            check_storable(answer, model)
        results = [
            StoredResult(record_id=str(id_), payload=answer, attempt=1, finish_reason="stop", engine="e", stored_at=0)
            for id_, answer in zip(IDS, answers, strict=False)
        ]
        sealer = Sealer(self._version, model, self._reader, self._objects)
        return self._objects.path(sealer.seal(0, results, reopened=next(self._times)).key)

    def violations(self, model: type[BaseModel], path: Path) -> list[str]:
        """What the schema check's rules say of the file: column types, then every row."""
        table, columns = pq.read_table(path), sealed_schema(self._version, model, self._reader.schema())
        wrong = [field.name for field in columns if not is_typed(table.schema, field)]
        rules = table_schema(model, "record id")
        values = {name: table.column(name).to_pylist(maps_as_pydicts="strict") for name in rules.columns}
        try:
            rules.validate(
                pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in values.items()}), lazy=True
            )
        except pandera.errors.SchemaErrors as error:
            wrong += [str(one) for one in error.failure_cases["column"]]
        return wrong


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return Table(tmp_path_factory.mktemp("typed"))


@given(example=examples())
@settings(
    derandomize="TYPED_EXAMPLES" not in os.environ,
    deadline=None,
    max_examples=int(os.environ.get("TYPED_EXAMPLES", "50")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_what_pydantic_has_is_what_tables_show(table: Table, example: Example) -> None:
    """Sealed, read through pyarrow and through DuckDB, and accepted by the schema check."""
    path = table.seal(example.model, example.answers)
    names = list(example.rows[0])
    expected = sorted(
        ({"record id": id_, **row} for id_, row in zip(IDS, example.rows, strict=False)),
        key=lambda row: row["record id"],
    )
    columns = pq.read_table(path).select(["record id", *names])
    assert exactly(columns.to_pylist(maps_as_pydicts="strict")) == exactly(expected)
    assert columns.schema.field("record id").type == pa.int64()
    assert exactly(duck_rows(path, ["record id", *names])) == exactly(expected)
    assert table.violations(example.model, path) == []


def duck_rows(path: Path, names: list[str]) -> list[dict[str, Any]]:
    """The rows as DuckDB's clients get them."""
    chosen = ", ".join(f'"{name}"' for name in names)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")  # others cannot show the year 9999
        rows = connection.execute(f"SELECT {chosen} FROM read_parquet('{path}')").fetchall()
    return [dict(zip(names, row, strict=True)) for row in rows]


def exactly(value: Any) -> Any:
    """Equal only for the same values of the same types: 0.0 is not -0.0, True not 1; a moment is a moment."""
    if isinstance(value, dict):
        return [(exactly(key), exactly(item)) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))]
    if isinstance(value, list):
        return [exactly(item) for item in value]
    return type(value).__name__, repr(value) if isinstance(value, float) else value


class Mood(Enum):
    CALM = "calm"
    CROSS = "cross"


class Part(BaseModel):
    mood: Mood
    moods: list[Literal["up", "down"]]


class Everything(BaseModel):
    mood: Mood
    parts: list[Part]
    day: datetime.date
    at: datetime.datetime
    local: NaiveDatetime
    clock: datetime.time
    price: Decimal = Field(max_digits=10, decimal_places=2)
    prices: dict[str, Annotated[Decimal, Field(max_digits=4, decimal_places=1)]]
    raw: bytes
    note: str | None


EVERYTHING = {
    "mood": "calm",
    "parts": [{"mood": "cross", "moods": ["up"]}],
    "day": "1969-12-31",
    "at": "9999-12-31T23:59:59.999999Z",
    "local": "0001-01-01T00:00:00",
    "clock": "23:59:59Z",
    "price": 12345678.9,
    "prices": {"a": "-0.5"},
    "raw": "é",
    "note": None,
}


def test_duckdb_shows_the_types(table: Table) -> None:
    """Enums, also inside of lists and structs, are dictionaries in the file and texts in SQL."""
    path = table.seal(Everything, [json.dumps(EVERYTHING)])
    assert pq.read_schema(path).field("mood").type == ENUM
    assert arrow_type(list[Part]) == pa.list_(pa.struct([("mood", ENUM), ("moods", pa.list_(ENUM))]))
    with duckdb.connect() as connection:
        described = connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
    assert {name: kind for name, kind, *_ in described if not name.startswith("_")} == {
        "record id": "BIGINT",
        "mood": "VARCHAR",
        "parts": "STRUCT(mood VARCHAR, moods VARCHAR[])[]",
        "day": "DATE",
        "at": "TIMESTAMP WITH TIME ZONE",
        "local": "TIMESTAMP",
        "clock": "TIME",
        "price": "DECIMAL(10,2)",
        "prices": "MAP(VARCHAR, DECIMAL(4,1))",
        "raw": "BLOB",
        "note": "VARCHAR",
    }


SOURCE = """\
import datetime
from decimal import Decimal
from enum import Enum
from typing import Literal

from pydantic import BaseModel, Field


class Mood(Enum):
    CALM = "calm"
    CROSS = "cross"


class Part(BaseModel):
    mood: Mood
    moods: list[Literal["up", "down"]]


class Output(BaseModel):
    category: Mood
    parts: list[Part]
    day: datetime.date | None
    price: Decimal = Field(max_digits=10, decimal_places=2)
    counts: dict[str, int]
"""


def test_the_warehouse_has_the_types(home: Home) -> None:
    """From the answer to the published table, checks included."""
    answer = {"category": "calm", "parts": EVERYTHING["parts"], "day": None, "price": 1.5, "counts": {"a": 1}}
    records = {record_id(number): {"text": json.dumps(answer)} for number in range(2)}
    make_job(home.jobs, records=2, output_schema=SOURCE, script={"records": records})
    registered, _ = home.worked()
    assert [verdict.check for verdict in check(home.deployment, registered) if not verdict.passed] == []
    publish(home.deployment, registered)
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        described = connection.execute("DESCRIBE published.tiny").fetchall()
        rows = connection.execute("SELECT parts, price, counts FROM published.tiny").fetchall()
    assert {name: kind for name, kind, *_ in described if name in answer} == {
        "category": "VARCHAR",
        "parts": "STRUCT(mood VARCHAR, moods VARCHAR[])[]",
        "day": "DATE",
        "price": "DECIMAL(10,2)",
        "counts": "MAP(VARCHAR, BIGINT)",
    }
    assert rows == [(EVERYTHING["parts"], Decimal("1.50"), {"a": 1})] * 2


class Node(BaseModel):
    children: list[Node]


class Tags(RootModel[list[Mood]]):
    pass


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (Decimal, pa.decimal128(38, 9)),
        (Annotated[Decimal, Field(decimal_places=2)], pa.decimal128(38, 2)),
        (Annotated[Decimal, Field(max_digits=5)], pa.decimal128(10, 5)),
        (Annotated[Decimal, Field(max_digits=2, decimal_places=9)], pa.decimal128(2, 2)),
        (list[Annotated[Decimal, Field(max_digits=38, decimal_places=38)] | None], pa.list_(pa.decimal128(38, 38))),
        (Tags, pa.list_(ENUM)),
        (Literal["a", None], ENUM),
        (Literal[Mood.CALM], ENUM),
        (Literal[1, 2], pa.int64()),
        (Literal["a"] | Literal["b"] | None, ENUM),
        (dict[datetime.date, Mood], pa.map_(pa.date32(), ENUM)),
    ],
)
def test_annotations_have_column_types(annotation: Any, kind: pa.DataType) -> None:
    """Bounds are found wherever pydantic takes them."""
    assert arrow_type(annotation) == kind


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Annotated[Decimal, Field(max_digits=39, decimal_places=2)], "may have 39 digits"),
        (Annotated[Decimal, Field(max_digits=20)], "may have 40 digits"),
        (int | str, "mixes several types"),
        (Literal["a", 1], "values of one plain type"),
        (list, "has no column type"),
        (dict, "has no column type"),
        (datetime.timedelta, "has no column type"),
        (Any, "has no column type"),
        (Node, "'children': Node contains itself"),
        (create_model("Cased", a=int, A=str), "'a' and 'A' of Cased differ only in upper and lower case"),
    ],
)
def test_a_type_without_a_column_is_refused_before_anything_is_computed(annotation: Any, message: str) -> None:
    """The message names the field, however deep it is."""
    outer = create_model("Outer", inner=create_model("Inner", value=list[annotation]))
    with pytest.raises(UnsupportedType, match=f"field 'inner': field 'value': .*{message}"):
        arrow_fields(outer)


@pytest.mark.parametrize(
    ("annotation", "answer", "message"),
    [
        (
            "Decimal",
            "12345678901234567.89",
            "would be rounded to 12345678901234568; a long decimal must be a JSON string",
        ),
        ("Decimal", '"1.12345678901"', "cause data loss"),
        ("Decimal", '"NaN"', "finite"),
        ("list[float]", "[1e999]", "not a finite number"),
        ("dict[str, float]", '{"a": NaN}', "not a finite number"),
        ("int", "9223372036854775808", "too large"),
        ("datetime.time", '"10:00:00+02:00"', r"10:00:00\+02:00 has an offset"),
        ("str", r'"\ud800"', "Invalid JSON"),
        ("datetime.datetime", '"0001-01-01T00:00:00+01:00"', "out of range"),
    ],
)
def test_a_value_that_a_column_cannot_hold_exactly_is_refused(annotation: str, answer: str, message: str) -> None:
    """An answer is refused when it arrives, not rounded, cut or shifted on its way to the table."""
    model = create_model("Output", value=eval(annotation))
    with pytest.raises(ValueError, match=message):
        check_storable(f'{{"value": {answer}}}', model)


@pytest.mark.parametrize("number", ["0.1", "1e-7", "123456789012345.25", "-0.0", "12345678901234567890123456789"])
def test_decimals_written_as_numbers_are_exact(number: str, table: Table) -> None:
    """As long as a double carries them; integers of any length."""
    model = create_model("Output", value=Decimal, other=float)
    path = table.seal(model, [f'{{"value": {number}, "other": 3.14159265358979323846}}'])
    assert pq.read_table(path).column("value").to_pylist() == [Decimal(number)]


def test_sets_are_stored_in_one_order() -> None:
    """Whichever process seals them; None and nested models have no order of their own."""
    assert to_arrow_value({"b", "a"}) == ["a", "b"]
    assert to_arrow_value({None, 2, 1}) == to_arrow_value({1, 2, None})


def _bad_category(rows: list[dict[str, Any]]) -> None:
    rows[0]["parts"][0]["mood"] = "livid"


def _too_cheap(rows: list[dict[str, Any]]) -> None:
    rows[0]["mood"] = None


@pytest.mark.parametrize(("spoil", "column"), [(_bad_category, "parts"), (_too_cheap, "mood")])
def test_the_schema_check_sees_into_nested_values(
    spoil: Callable[[list[dict[str, Any]]], None], column: str, table: Table, tmp_path: Path
) -> None:
    """Typed columns hold any text in a dictionary; the check holds it against the enum."""
    sealed = pq.read_table(table.seal(Everything, [json.dumps(EVERYTHING)]))
    rows = sealed.to_pylist()
    spoil(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=sealed.schema), tmp_path / "spoilt.parquet")
    assert {*table.violations(Everything, tmp_path / "spoilt.parquet")} == {column}
