"""A job whose pinned, sealed and published files live in a bucket, from the folder to the reader."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from assets_tests.factories import make_job, make_records
from assets_tests.homes import Home
from assets_tests.s3 import BUCKET, SECRET, moto_server, use
from batch_assets.operations.catalog import open_published
from batch_assets.operations.check import check
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.export import export
from batch_assets.operations.pin_changes import pin_changes
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.read import read_published
from batch_assets.operations.work import work
from batch_assets.settings import Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose object store is a bucket."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with moto_server() as port:
        use(monkeypatch, port)
        settings = Settings(home=tmp_path / "home", objects=f"s3://{BUCKET}/batch", jobs=jobs, models=tmp_path)
        deployment = Deployment(settings)
        yield Home(deployment, jobs)
        deployment.ledger.close()


def published_ids(home: Home) -> list[str]:
    with open_published(home.deployment) as connection:
        return [row[0] for row in connection.execute("SELECT record_id FROM published.tiny ORDER BY 1").fetchall()]


def test_a_job_runs_and_is_published_in_a_bucket(home: Home, tmp_path: Path) -> None:
    """Pinned from CSV, worked, checked, published, changed and rolled back; no file of it lies in the home."""
    job = make_job(home.jobs, snapshot={"path": "records.csv"})
    rows = make_records(20)
    with (job / "records.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    (job / "records.parquet").unlink()
    first, _ = home.worked()
    verdicts = check(home.deployment, first)
    assert [verdict.check for verdict in verdicts if not verdict.passed] == []
    publish(home.deployment, first)
    assert published_ids(home) == [row["record_id"] for row in rows]

    objects = home.deployment.objects
    kinds = {one.key.split("/")[0] for one in objects.list()}
    assert kinds == {"snapshots", "versions", "results", "published"}
    pointer = json.loads(objects.get("published/tiny.json"))
    with objects.open(pointer["files"][0]["key"]) as file:
        assert pq.read_table(file).num_rows == pointer["files"][0]["rows"]
    assert not (home.deployment.settings.root / "objects").exists()

    exported = export(home.deployment, "tiny", "parquet", tmp_path / "rows.parquet")
    assert exported.rows == 20
    changes = tmp_path / "changes.csv"
    changes.write_text("record_id,subject,body,record_class,acl\nR-00020,Subject,Body,public,team-1\n")
    pinned = pin_changes(home.deployment, home.deployment.job("tiny"), changes)
    plan(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
    second = home.deployment.ledger.plans.get(pinned.job_version)
    work(home.deployment, second)
    check(home.deployment, second)
    publish(home.deployment, second)
    assert len(published_ids(home)) == 21
    merged = read_published("tiny", settings=home.deployment.settings, digests=True).to_table(columns=["record_id"])
    assert sorted(merged["record_id"].to_pylist()) == published_ids(home)
    rollback(home.deployment, "tiny")
    assert len(published_ids(home)) == 20
    assert json.loads(objects.get("published/tiny.json"))["job_version"] == first.job_version
    assert SECRET not in "".join(path.read_text(errors="replace") for path in home.jobs.parent.rglob("*.json"))
