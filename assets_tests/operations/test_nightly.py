"""Nightly batches: taken in the order of their names, each once, and none overtakes one that was refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.factories import make_job, make_records, record_id
from assets_tests.homes import Home
from batch_assets.errors import GateError, SpecError
from batch_assets.operations.check import check
from batch_assets.operations.nightly import Batch, pending_batches, pin_batch
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.work import work


def published_job(home: Home) -> Path:
    """A published job with a nightly round; returns the folder of its batches."""
    folder = make_job(home.jobs, nightly={"batches": "nights"}) / "nights"
    folder.mkdir()
    registered, _ = home.worked()
    check(home.deployment, registered)
    publish(home.deployment, registered)
    return folder


def write_changes(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{**make_records(number + 1)[number], "body": path.name}]), path)


def waiting(home: Home) -> list[str]:
    return [batch.name for batch in pending_batches(home.deployment, home.deployment.job("tiny"))]


def take(home: Home, batch: Batch) -> str:
    pinned = pin_batch(home.deployment, home.deployment.job("tiny"), batch)
    plan(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
    registered = home.deployment.ledger.plans.get(pinned.job_version)
    work(home.deployment, registered)
    check(home.deployment, registered)
    publish(home.deployment, registered)
    return registered.job_version


def test_batches_are_taken_in_order_and_once(home: Home) -> None:
    """Files and folders, by name; what is still being written, or came too late, is left alone."""
    folder = published_job(home)
    write_changes(folder / "2026-11-03.parquet", 3)
    write_changes(folder / "2026-11-02" / "changes.parquet", 2)
    (folder / "2026-11-02" / "removed.txt").write_text(f"{record_id(9)}\n")
    (folder / "2026-11-04").mkdir()
    (folder / "2026-11-04" / "removed.txt").write_text(f"{record_id(8)}\n")
    write_changes(folder / "2026-11-05.parquet.tmp", 5)
    write_changes(folder / ".2026-11-01.parquet", 1)
    assert waiting(home) == ["2026-11-02", "2026-11-03.parquet", "2026-11-04"]
    first = pending_batches(home.deployment, home.deployment.job("tiny"))[0]
    assert (first.changes, first.removed) == (
        folder / "2026-11-02" / "changes.parquet",
        folder / "2026-11-02" / "removed.txt",
    )
    versions = [take(home, batch) for batch in pending_batches(home.deployment, home.deployment.job("tiny"))]
    assert home.deployment.ledger.publications.current("tiny") == versions[-1]
    assert waiting(home) == []
    write_changes(folder / "2026-11-01-too-late.parquet", 1)
    assert waiting(home) == []


def test_a_batch_that_was_not_published_keeps_its_turn(home: Home) -> None:
    """Pinned and answered is not taken: the next round tries it again, as the same version."""
    folder = published_job(home)
    for number in (2, 3):
        write_changes(folder / f"2026-11-0{number}.parquet", number)
    batch = pending_batches(home.deployment, home.deployment.job("tiny"))[0]
    pinned = pin_batch(home.deployment, home.deployment.job("tiny"), batch)
    assert waiting(home) == ["2026-11-02.parquet", "2026-11-03.parquet"]
    assert take(home, batch) == pinned.job_version
    assert waiting(home) == ["2026-11-03.parquet"]


def test_after_a_rollback_the_round_waits_for_a_person(home: Home) -> None:
    """Otherwise it would publish again what was taken back, or the next night without this one's changes."""
    folder = published_job(home)
    write_changes(folder / "2026-11-02.parquet", 2)
    version = take(home, pending_batches(home.deployment, home.deployment.job("tiny"))[0])
    rollback(home.deployment, "tiny")
    write_changes(folder / "2026-11-03.parquet", 3)
    with pytest.raises(GateError, match=rf"was rolled back .*`batch-assets publish {version}`"):
        waiting(home)
    publish(home.deployment, home.deployment.ledger.plans.get(version))
    assert waiting(home) == ["2026-11-03.parquet"]


@pytest.mark.parametrize("names", [(), ("readme.txt",), ("changes.parquet", "notes.txt")])
def test_a_folder_that_is_no_batch_is_refused(home: Home, names: tuple[str, ...]) -> None:
    """What it must hold, and what it holds, stand in the message."""
    batch = published_job(home) / "2026-11-02"
    batch.mkdir()
    for name in names:
        (batch / name).write_text("")
    with pytest.raises(SpecError, match=rf"2026-11-02 is no nightly batch.*found {', '.join(names) or 'nothing'}"):
        waiting(home)


def test_a_missing_folder_is_named(home: Home) -> None:
    """And so is the key that it comes from."""
    published_job(home).rmdir()
    with pytest.raises(SpecError, match=r"key 'nightly.batches': found 'nights', but there is no folder"):
        waiting(home)
