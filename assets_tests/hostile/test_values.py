"""Values that change on the way through libraries: times with an offset, labels that Python cannot hold."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.factories import make_job, make_records, record_id
from assets_tests.homes import Home, temporary_home
from batch_assets.errors import SnapshotError
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.storage.warehouse import open_warehouse

TIMES = """\
import datetime

from pydantic import BaseModel


class Output(BaseModel):
    at: datetime.datetime
    all: list[datetime.datetime]
"""
PANDERA_THEN_ARROW = """\
import datetime, pandera.pandas
import pyarrow as pa
from batch_assets.storage.typed import to_arrow_value
east = datetime.timezone(datetime.timedelta(hours=14))
value = to_arrow_value(datetime.datetime(2026, 1, 1, tzinfo=east))
print(pa.array([value], type=pa.timestamp("us", tz="UTC"))[0].as_py().isoformat())
"""


def test_a_time_keeps_its_offset_whatever_was_imported(home: Home) -> None:
    """Sealed is the same moment, also in a process that has imported pandera, which tells Arrow to ignore offsets."""
    text = json.dumps({"at": "2026-01-01T00:00:00+14:00", "all": ["2026-01-01T00:00:00-12:00"]})
    script = {"records": {record_id(0): {"text": text}}}
    make_job(home.jobs, records=1, output_schema=TIMES, script=script)
    registered, _ = home.worked()
    (row,) = home.sealed_rows(registered)
    assert row["at"] == datetime.datetime(2025, 12, 31, 10, tzinfo=datetime.UTC)
    assert row["all"] == [datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)]
    done = subprocess.run([sys.executable, "-c", PANDERA_THEN_ARROW], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2025-12-31T10:00:00+00:00"


def test_labels_are_copied_without_becoming_python_values(home: Home) -> None:
    """Nanoseconds, time zones, bytes, decimals and nested labels arrive as they were, and are published."""
    rows = make_records(3)
    stamps = pa.array([1, 2, 3_000_000_001], type=pa.timestamp("ns", tz="Europe/Berlin"))
    labels = {
        "stamp": stamps,
        "binary": pa.array([b"\xff\x00", b"", None], type=pa.binary()),
        "nested": pa.array([[{"a": "\x00"}], [], None]),
        "many": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
    job = make_job(home.jobs, records=rows, snapshot={"access_labels": ["acl", *labels]}, script={})
    source = pa.Table.from_pylist(rows)
    for name, values in labels.items():
        source = source.append_column(name, values)
    pq.write_table(source, job / "records.parquet")
    registered, _ = home.worked()
    (shard,) = home.deployment.ledger.progress.shards(registered.job_version, state="completed")
    sealed = pq.read_table(home.deployment.objects.path(str(shard.sealed_key)))
    for name, values in labels.items():
        plain = values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values
        assert sealed.column(name).combine_chunks().equals(plain), name
    assert all(verdict.passed for verdict in check(home.deployment, registered))
    publish(home.deployment, registered)
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        assert connection.execute("SELECT max(epoch_ns(stamp)) FROM published.tiny").fetchone() == (3_000_000_001,)


def test_labels_and_ids_with_a_dictionary_for_each_row_group(home: Home) -> None:
    """Dictionary encoding is a way of storing: where dictionaries differ, each row still has its own label."""
    rows = make_records(1_200)
    job = make_job(home.jobs, records=rows, shard_size=700, script={})
    table = pa.Table.from_pylist(rows)
    for name in ("record_id", "acl"):
        values = pa.array([f"{name} {number % 500 if name == 'acl' else number}" for number in range(1_200)])
        table = table.set_column(table.schema.get_field_index(name), name, values.dictionary_encode())
    pq.write_table(table, job / "records.parquet", row_group_size=250)
    registered, _ = home.worked()
    found = {row["record_id"]: row["acl"] for row in home.sealed_rows(registered)}
    assert found == {f"record_id {number}": f"acl {number % 500}" for number in range(1_200)}


@pytest.mark.parametrize("name", ["__row", "__FILE", "File_Row_Number"])
def test_a_column_named_like_one_of_ours_is_refused(home: Home, name: str) -> None:
    """Whatever its case, which SQL does not tell apart."""
    job = make_job(home.jobs, records=3, script={})
    table = pa.Table.from_pylist(make_records(3)).append_column(name, pa.array([1, 2, 3]))
    pq.write_table(table, job / "records.parquet")
    with pytest.raises(SnapshotError, match="cannot be named"):
        home.pinned()


NAMES = ["{{ body }}", 'a"b', "a'b", "<b>", "x\x00y", "\x1b[31m", "[red]", "a.b", "SELECT", "=1+1", "语"]


@pytest.mark.parametrize("name", NAMES)
def test_awkward_column_names_change_nothing(home: Home, name: str) -> None:
    """As the name of the record id and of a label, from the snapshot to the published table."""
    label = f"label {name}"
    rows = [{name: row["record_id"], "subject": "s", "body": "b", label: row["acl"]} for row in make_records(3)]
    columns = {"record_id": name, "record_class": None, "access_labels": [label]}
    make_job(home.jobs, records=rows, script={}, snapshot=columns)
    registered, _ = home.worked()
    assert [(row[name], row[label]) for row in home.sealed_rows(registered)] == [
        tuple(row.values())[::3] for row in rows
    ]
    assert all(verdict.passed for verdict in check(home.deployment, registered))
    publish(home.deployment, registered)
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        found = connection.execute("DESCRIBE published.tiny").fetchall()
    assert {name, label} <= {row[0] for row in found}


@pytest.mark.parametrize("column", ["record_id", "subject", "acl"])
def test_a_parquet_file_whose_text_is_not_utf_8_is_refused_when_planned(home: Home, column: str) -> None:
    """Whichever column it is in: nobody computes for a shard that could not be sealed or checked."""
    job = make_job(home.jobs, records=3, script={})
    table = pa.Table.from_pylist(make_records(3))
    latin = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array([0, 2, 3, 4], type=pa.int32()).buffers()[1], pa.py_buffer(b"\xfc\xe9ab")]
    )
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, latin), job / "records.parquet")
    with pytest.raises(SnapshotError, match=r"not valid UTF-?8") as refusal:
        home.pinned()
    assert str(refusal.value).isprintable()


AWKWARD = [
    "day=2026-11-30",
    "it's",
    "a b",
    "[abc]",
    "what?",
    "st*r",
    "semi;colon",
    'quote"d',
    "new\nline",
    "ümläut",
    "e\u0301",
]


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_folder_and_file_names_change_nothing(tmp_path: Path, name: str) -> None:
    """Neither the snapshot's nor the home's path is read as a pattern, a partition or SQL."""
    # DuckDB itself reads a question mark in the name of a database as the start of options.
    with temporary_home(tmp_path / name.replace("?", "")) as home:
        job = make_job(home.jobs, records=4, script={}, snapshot={"path": f"{name}"}, name="tiny")
        folder = job / name
        folder.mkdir()
        (job / "records.parquet").rename(folder / f"{name}.parquet")
        for other in ("a", "whatx", "stxxr"):  # what the patterns would match
            (job / other).mkdir()
            pq.write_table(pa.Table.from_pylist(make_records(9)), job / other / f"{other}.parquet")
        registered, _ = home.worked()
        rows = home.sealed_rows(registered)
        assert all(verdict.passed for verdict in check(home.deployment, registered))
        publish(home.deployment, registered)
        with open_warehouse(home.deployment.settings.warehouse) as connection:
            columns = [row[0] for row in connection.execute("DESCRIBE published.tiny").fetchall()]
        assert columns == list(rows[0])
