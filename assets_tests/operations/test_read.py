"""`batch_assets.read_published`: what is published, from the pointer object alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import batch_assets
from assets_tests.factories import record_id
from assets_tests.homes import Home
from assets_tests.publishing import published
from assets_tests.s3 import BUCKET, moto_server, use
from batch_assets.errors import InputError, StoreError, VersionError
from batch_assets.operations.catalog import open_published
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.sweep import sweep
from batch_assets.settings import Settings

IDS = [record_id(number) for number in range(20)]


def elsewhere(home: Home, folder: Path) -> Settings:
    """Another machine that sees the objects and has neither ledger nor catalog."""
    return Settings(home=folder / "no home", objects=home.deployment.settings.objects_address)


def test_both_ways_of_reading_see_the_whole_version(home: Home, tmp_path: Path) -> None:
    """The same rows as a dataset and as a relation; both stay what they are when another version is published."""
    version, there = published(home, "Sort"), elsewhere(home, tmp_path)
    dataset = batch_assets.read_published("tiny", settings=there, digests=True)
    relation = batch_assets.read_published("tiny", settings=there, as_="duckdb")
    published(home, "Put")
    table = dataset.to_table()
    assert table["record_id"].to_pylist() == IDS
    assert pc.unique(table["_job_version"]).to_pylist() == [version.job_version]
    assert relation.aggregate("count(*), min(_job_version), max(_job_version)").fetchall() == [
        (20, version.job_version, version.job_version)
    ]
    assert dataset.to_table(filter=pc.field("record_id") == IDS[7]).num_rows == 1
    assert not (tmp_path / "no home").exists()


def test_what_is_wrong_is_said(home: Home, tmp_path: Path) -> None:
    """Nothing published, no store, a missing file, other bytes: each by its name, and never some of the rows."""
    with pytest.raises(StoreError, match="There is no object store in"):
        batch_assets.read_published("tiny", settings=Settings(home=tmp_path / "nowhere"))
    version, there = published(home, "Sort"), elsewhere(home, tmp_path)
    with pytest.raises(VersionError, match="other has nothing published"):
        batch_assets.read_published("other", settings=there)
    with pytest.raises(InputError, match="as_='pandas'"):
        batch_assets.read_published("tiny", settings=there, as_="pandas")  # type: ignore[call-overload]
    _, second, *_ = sorted(Path(there.objects_address).glob(f"results/tiny/{version.job_version}/*.parquet"))
    whole = second.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    second.write_bytes(flipped)
    with pytest.raises(StoreError, match=rf"{second} has other bytes than were published"):
        batch_assets.read_published("tiny", settings=there, digests=True)
    second.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=rf"{second} has [\d,]+ bytes instead of [\d,]+"):
        batch_assets.read_published("tiny", settings=there)
    second.write_bytes(b"x" * len(whole))
    with pytest.raises(StoreError, match=rf"{second} cannot be read"):
        batch_assets.read_published("tiny", settings=there, as_="duckdb")
    second.unlink()
    with pytest.raises(StoreError, match=rf"{second} is missing, and tiny is published with it"):
        batch_assets.read_published("tiny", settings=there)
    pointer = Path(there.objects_address) / "published/tiny.json"
    pointer.write_text(pointer.read_text()[:-40])
    with pytest.raises(StoreError, match=r"tiny\.json is damaged.*rebuild-catalog"):
        batch_assets.read_published("tiny", settings=there)


def test_a_file_with_another_number_of_rows_is_refused(home: Home, tmp_path: Path) -> None:
    """The same size to the byte, and a row less."""
    version, there = published(home, "Sort"), elsewhere(home, tmp_path)
    first, *_ = sorted(Path(there.objects_address).glob(f"results/tiny/{version.job_version}/*.parquet"))
    size, table = first.stat().st_size, pq.read_table(first)
    for padding in range(1, 4000):
        metadata = {**(table.schema.metadata or {}), b"padding": b"x" * padding}
        pq.write_table(table.slice(1).replace_schema_metadata(metadata), first)
        if first.stat().st_size >= size:
            break
    if first.stat().st_size == size:
        with pytest.raises(StoreError, match=rf"{first} has 4 rows instead of 5"):
            batch_assets.read_published("tiny", settings=there)
    else:
        raise AssertionError("no padding makes the file as large as it was")


def test_it_is_the_same_from_a_bucket(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published, opened through the catalog and swept in S3, and read by somebody who knows its address only."""
    with moto_server() as port:
        use(monkeypatch, port)
        settings = home.deployment.settings.model_copy(update={"objects": f"s3://{BUCKET}/here"})
        remote = Home(Deployment(settings), home.jobs)
        first, version = published(remote, "Sort"), published(remote, "Put")
        with open_published(remote.deployment) as connection:
            seen = connection.execute("SELECT count(*), min(_job_version) FROM published.tiny").fetchone()
        assert seen == (20, version.job_version)
        swept = sweep(remote.deployment, "tiny", keep=1, grace_h=0)
        assert [(one.job_version, one.files) for one in swept.versions] == [(first.job_version, 4)]
        assert list(remote.deployment.objects.list(f"results/tiny/{first.job_version}/")) == []
        shutil.rmtree(settings.root)
        there = Settings(home=tmp_path / "no home", objects=settings.objects)
        table = batch_assets.read_published("tiny", settings=there, digests=True).to_table()
        assert table["record_id"].to_pylist() == IDS
        rows = batch_assets.read_published("tiny", settings=there, as_="duckdb").fetchall()
        assert {row[0] for row in rows} == set(IDS)
        assert set(table["_job_version"].to_pylist()) == {version.job_version}
        remote.deployment.ledger.close()
