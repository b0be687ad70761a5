"""Delta and Iceberg tables as snapshots: pinned to the rows of one version, whatever becomes of the table."""

from __future__ import annotations

import builtins
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import ValidationError
from pyiceberg.catalog.sql import SqlCatalog

from assets_tests import iceberg_deletes, s3
from assets_tests.delta_logs import delete_rows, rename_column, require_feature
from assets_tests.factories import make_job, make_records, record_id
from assets_tests.homes import Home
from batch_assets.core.spec import SnapshotSpec
from batch_assets.core.version import SnapshotPin
from batch_assets.errors import SnapshotError
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.snapshots import SnapshotReader, pin_snapshot

KINDS = ["delta", "iceberg"]


class Tables:
    """Tables of both kinds in one place, and their versions by number."""

    def __init__(self, folder: Path, root: str, **properties: str) -> None:
        self.folder = folder
        self.root = root
        self.objects = LocalObjects(folder / "objects")
        self._catalog = SqlCatalog("tests", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"{root}/ice", **properties)
        self._catalog.create_namespace("n")

    def close(self) -> None:
        self._catalog.close()

    def write(self, kind: str, rows: pa.Table, *, mode: Any = "append", partition_by: str | None = None) -> None:
        if kind == "delta":
            write_deltalake(f"{self.root}/delta", rows, mode=mode, partition_by=partition_by and [partition_by])
            return
        table = self._catalog.create_table_if_not_exists("n.t", schema=rows.schema, location=f"{self.root}/iceberg")
        if mode == "overwrite":
            table.overwrite(rows)
        else:
            table.append(rows)

    def version(self, kind: str) -> dict[str, int]:
        """The key of the spec for the newest version."""
        if kind == "delta":
            return {"version": DeltaTable(f"{self.root}/delta").version()}
        snapshot = self._catalog.load_table("n.t").current_snapshot()
        assert snapshot is not None
        return {"snapshot_id": snapshot.snapshot_id}

    def pin(self, kind: str, **others: Any) -> SnapshotPin:
        given = {"path": f"{self.root}/{kind}", "format": kind, "record_id": "id", "text": ["body"], **others}
        return pin_snapshot(SnapshotSpec.model_validate(given), self.folder, self.objects)

    def rows(self, pin: SnapshotPin) -> list[dict[str, Any]]:
        reader = SnapshotReader(pin, self.objects)
        reader.verify_files()
        return list(reader.read(range(pin.rows), reader.schema().names))


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path, str(tmp_path))
    yield made
    made.close()


def records(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "body": [f"text {one}" for one in ids]})


@pytest.mark.parametrize("kind", KINDS)
def test_a_pin_keeps_the_rows_of_its_version(kind: str, tables: Tables) -> None:
    """Appends, overwrites, and files that are gone change nothing; another version is another snapshot."""
    tables.write(kind, records(3, 1, 2))
    first = tables.pin(kind)
    then = tables.version(kind)
    assert [row["id"] for row in tables.rows(first)] == [3, 1, 2]
    tables.write(kind, records(7))
    assert tables.pin(kind, **then) == first
    assert first.sources[0].key.endswith(f"{kind}@{next(iter(then.values()))}")
    second = tables.pin(kind)
    assert sorted(row["id"] for row in tables.rows(second)) == [1, 2, 3, 7]
    assert second.sources[0].sha256 != first.sources[0].sha256
    tables.write(kind, records(9), mode="overwrite")
    for file in (tables.folder / kind).rglob("*.parquet"):
        file.unlink()
    assert [row["id"] for row in tables.rows(first)] == [3, 1, 2]
    assert tables.pin(kind, **then) == first
    with pytest.raises(SnapshotError, match=f"{kind}@.* cannot be read: .*VACUUM.*Nothing was pinned"):
        tables.pin(kind)


def test_an_optimized_and_vacuumed_table_keeps_its_pins(tables: Tables) -> None:
    """OPTIMIZE makes a version of its own with the same rows; VACUUM removes what older ones need."""
    for one in (5, 4, 6):
        tables.write("delta", records(one))
    pin = tables.pin("delta")
    table = DeltaTable(f"{tables.root}/delta")
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert sorted(row["id"] for row in tables.rows(pin)) == [4, 5, 6]
    assert sorted(row["id"] for row in tables.rows(tables.pin("delta"))) == [4, 5, 6]
    assert tables.pin("delta", version=2) == pin
    shutil.rmtree(tables.folder / "objects")
    tables.objects = LocalObjects(tables.folder / "objects")
    with pytest.raises(SnapshotError, match="delta@2 cannot be read"):
        tables.pin("delta", version=2)


PART = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string()))])
TYPES = pa.table(
    {
        "id": pa.array([2**62, -1], pa.int64()),
        "body": ["é", "x"],
        "price": pa.array([Decimal("12345678901234567890123456.78"), None], pa.decimal128(38, 2)),
        "day": [date(1, 1, 1), date(9999, 12, 31)],
        "at": pa.array([datetime(1950, 1, 1, tzinfo=UTC), None], pa.timestamp("us", tz="UTC")),
        "local": pa.array([datetime(2026, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")),
        "raw": [b"\xff", b""],
        "parts": pa.array(
            [[{"n": 1, "tags": ["a"]}], []], pa.list_(pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string()))]))
        ),
        "counts": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        "score": [0.1, None],
        "ok": [True, None],
    }
)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_arrive_with_their_types(kind: str, tables: Tables) -> None:
    """Decimals, dates, times and nested values, without a detour through text."""
    tables.write(kind, TYPES)
    pin = tables.pin(kind)
    assert tables.rows(pin) == TYPES.to_pylist()
    assert SnapshotReader(pin, tables.objects).schema().types == TYPES.schema.types


def test_partition_columns_are_columns(tables: Tables) -> None:
    """Also where the partition's value is null; the rows come file by file, in the same order each time."""
    rows = pa.table({"id": [1, 2, 3, 4], "body": ["a", "b", "c", "d"], "day": ["y", None, "x", "y"]})
    tables.write("delta", rows, partition_by="day")
    pin = tables.pin("delta")
    assert sorted(tables.rows(pin), key=lambda row: row["id"]) == rows.to_pylist()
    shutil.rmtree(tables.folder / "objects")
    tables.objects = LocalObjects(tables.folder / "objects")
    assert tables.pin("delta").files[0].sha256 == pin.files[0].sha256


def test_deletion_vectors_and_renamed_columns_are_honoured(tables: Tables) -> None:
    """What deltalake's engine reads in any order is sorted by record id, and limited afterwards."""
    tables.write("delta", records(3, 1, 2, 5, 4))
    shutil.copytree(tables.folder / "delta", tables.folder / "mapped")
    delete_rows(tables.folder / "delta", [1, 3])
    assert [row["id"] for row in tables.rows(tables.pin("delta"))] == [2, 3, 4]
    assert [row["id"] for row in tables.rows(tables.pin("delta", rows=2))] == [2, 3]
    assert [row["id"] for row in tables.rows(tables.pin("delta", version=0))] == [3, 1, 2, 5, 4]
    rename_column(tables.folder / "mapped", "body", "subject")
    pin = tables.pin("delta", path="mapped", text=["subject"])
    assert [row["subject"] for row in tables.rows(pin)] == [f"text {one}" for one in range(1, 6)]


def test_position_deletes_are_honoured_and_equality_deletes_refused(tables: Tables) -> None:
    """Whatever pyiceberg cannot apply is said; the snapshot before it can still be pinned."""
    tables.write("iceberg", records(3, 1, 2, 5))
    before = tables.version("iceberg")
    (metadata,) = (tables.folder / "iceberg/metadata").glob("00001-*.metadata.json")
    iceberg_deletes.delete_rows(metadata, [0, 2])
    assert [row["id"] for row in tables.rows(tables.pin("iceberg"))] == [1, 5]
    assert [row["id"] for row in tables.rows(tables.pin("iceberg", **before))] == [3, 1, 2, 5]
    iceberg_deletes.delete_ids(metadata, [3])
    with pytest.raises(
        SnapshotError, match=r"Snapshot 4242 .* cannot be read by pyiceberg: .*equality deletes.*Compact"
    ):
        tables.pin("iceberg")
    assert tables.pin("iceberg", **before).rows == 4


def test_a_feature_that_cannot_be_read_is_refused(tables: Tables) -> None:
    """Rather than read without it."""
    tables.write("delta", records(1))
    require_feature(tables.folder / "delta", "timeTravelByMoonlight")
    with pytest.raises(
        SnapshotError, match=r"timeTravelByMoonlight.*Nothing was pinned|timeTravelByMoonlight.*pin that"
    ):
        tables.pin("delta")


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_limit_takes_the_first_rows(kind: str, tables: Tables) -> None:
    """And row groups stay small, so that a worker reads one shard without its neighbours."""
    tables.write(kind, records(*range(12_000, 0, -1)))
    limited = tables.pin(kind, rows=5_001)
    assert [row["id"] for row in tables.rows(limited)] == list(range(12_000, 6_999, -1))
    whole = tables.pin(kind)
    metadata = pq.read_metadata(tables.objects.path(whole.files[0].key))
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [5_000, 5_000, 2_000]
    assert whole.sources[0].sha256 == limited.sources[0].sha256


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "delta", "version": 7}, "has no version 7 that can be read; its log has 0 to 0"),
        ({"format": "iceberg", "snapshot_id": 7}, "has no snapshot 7; the newest of its 1 are"),
        ({"format": "delta", "path": "iceberg"}, "is no Delta table .*the folder holds data/, metadata/"),
        ({"format": "iceberg", "path": "delta"}, "is no Iceberg table .*the folder holds _delta_log/, part"),
        ({"format": "delta", "path": "nothing"}, "is no Delta table .*there is nothing"),
        ({"format": "iceberg", "path": "no.metadata.json"}, "is no metadata file of an Iceberg table"),
        ({"format": "delta", "text": ["subject"]}, r"delta@0: there is no column 'subject'.*columns are id, body"),
        ({"format": "iceberg", "access_labels": ["acl"]}, "there is no column 'acl'.*columns are id, body"),
        ({"format": "auto", "path": "delta"}, "is a table: set snapshot.format in defs.yaml to delta"),
        ({"format": "auto", "path": "iceberg"}, "is a table: set snapshot.format in defs.yaml to iceberg"),
        ({"format": "auto", "version": 0}, "version is for format: delta only"),
        ({"format": "delta", "snapshot_id": 1}, "snapshot_id is for format: iceberg only"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_there(given: dict[str, Any], message: str, tables: Tables) -> None:
    """A wrong version, a folder that is no table, a missing column; nothing is stored then."""
    for kind in KINDS:
        tables.write(kind, records(1))
    with pytest.raises((SnapshotError, ValidationError), match=message):
        tables.pin(**{"kind": given["format"], **given})
    assert list(tables.objects.list("snapshots")) == []


def test_a_metadata_file_and_two_of_one_number(tables: Tables) -> None:
    """A metadata file is taken as it is; in a folder the newest one counts, if that can be told."""
    tables.write("iceberg", records(1))
    (newest,) = (tables.folder / "iceberg/metadata").glob("00001-*.metadata.json")
    by_folder = tables.pin("iceberg")
    assert tables.pin("iceberg", path=str(newest)).files == by_folder.files
    shutil.copy(newest, newest.with_name("00001-leftover.metadata.json"))
    with pytest.raises(
        SnapshotError, match=r"2 metadata files of the same number: 00001-.*the one that the catalog names"
    ):
        tables.pin("iceberg")


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_library_the_command_is_said(kind: str, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries are an extra, and imported only for such a snapshot."""
    load = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in ("deltalake", "pyiceberg"):
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SnapshotError, match=r"not installed. Run: pip install 'batch-assets\[tables\]'"):
        tables.pin(kind)


def test_tables_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the usual AWS_* variables, also on a server that is not Amazon's."""
    with s3.moto_server() as port:
        s3.use(monkeypatch, port)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        server = {"s3.endpoint": f"http://127.0.0.1:{port}", "s3.region": "us-east-1"}
        there = Tables(tmp_path, f"s3://{s3.BUCKET}", **server)
        for kind in KINDS:
            there.write(kind, records(2, 1))
            assert [row["id"] for row in there.rows(there.pin(kind))] == [2, 1]
            with pytest.raises(SnapshotError, match=r"is no .* table .*AWS_"):
                there.pin(kind, path=f"s3://{s3.BUCKET}/nothing")
        there.close()


def test_a_job_on_a_table_runs_and_stays_one_version(home: Home) -> None:
    """Pinned, planned, answered; pinned again after the table moved on, its version names itself."""
    job = make_job(home.jobs, records=6, script={}, snapshot={"path": "table", "format": "delta", "version": 0})
    rows = pa.Table.from_pylist(make_records(6))
    write_deltalake(job / "table", rows)
    registered, _ = home.worked()
    assert [row["record_id"] for row in home.sealed_rows(registered)] == [record_id(n) for n in range(6)]
    write_deltalake(job / "table", rows, mode="overwrite")
    assert home.pinned().job_version == registered.job_version
