"""The invariants are no formality: each one notices when it is broken."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests import invariants
from assets_tests.ledgers import LedgerUnderTest, failure, result
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.sealed import SealedFile

NO_LEASE = "owner = NULL, lease_expires_at = NULL, claim_id = NULL"
COPY = (
    "INSERT INTO outcomes (job_version, shard, record_id, kind, attempt, payload, engine, worker, epoch, "
    "prompt_tokens, output_tokens, stored_at) SELECT job_version, {}, {}, kind, attempt, payload, engine, worker, {}, "
    "prompt_tokens, output_tokens, stored_at FROM outcomes WHERE record_id = '1'"
)
# What is done behind the ledger's back -> what is said about it. Shard 0 is completed, 1 leased, 2 pending.
BREAKS = {
    COPY.format(2, "record_id", "epoch"): "more than one outcome",
    COPY.format(1, "'9'", "epoch"): "1 results and dead letters by rows|by its counters",
    COPY.format(7, "'9'", "epoch"): "shards that do not exist",
    "DELETE FROM outcomes WHERE record_id = '2'": "by its counters",
    "UPDATE shards SET dead_letters = dead_letters + 1 WHERE shard = 1": "by its counters",
}


@pytest.fixture
def busy(ledger: LedgerUnderTest) -> LedgerUnderTest:
    """Shard 0 completed with three results and a dead letter, shard 1 leased with a result, shard 2 pending."""
    first = ledger.claim()
    ledger.put(first, result("0"), result("1"), result("2"), failure("3", attempt=3))
    ledger.complete(first, rows=3)
    ledger.put(ledger.claim(), result("4"))
    return ledger


def test_a_sound_ledger_passes(busy: LedgerUnderTest) -> None:
    """And says what is done, shard by shard."""
    assert invariants.check(busy.ledger, busy.version.id) == {0: 4, 1: 1}


@pytest.mark.parametrize("statement", BREAKS)
def test_a_broken_ledger_does_not(busy: LedgerUnderTest, statement: str) -> None:
    """The message says what is wrong."""
    with busy.ledger.database.write("test") as connection:
        connection.exec_driver_sql(statement)
    with pytest.raises(AssertionError, match=BREAKS[statement]):
        invariants.check(busy.ledger, busy.version.id)


def test_an_outcome_of_an_epoch_to_come_is_noticed(busy: LedgerUnderTest) -> None:
    """Nobody has claimed the shard as often as the row says."""
    with busy.ledger.database.write("test") as connection:
        connection.exec_driver_sql(COPY.format(1, "'5'", 7))
        connection.exec_driver_sql("UPDATE shards SET results = results + 1 WHERE shard = 1")
    with pytest.raises(AssertionError, match="shard 1: '5' was written by w1 at epoch 7, the shard is at 1"):
        invariants.check(busy.ledger, busy.version.id)


BENT: dict[str, tuple[str, Callable[..., None]]] = {
    "UPDATE shards SET sealed_key = 'k' WHERE shard = 1": ("sealed file is k", invariants.completed_shards_are_whole),
    "UPDATE shards SET results = 0, records = 4 WHERE shard = 0": (
        "by its counters",
        invariants.rows_and_counters_agree,
    ),
    "UPDATE shards SET records = 5 WHERE shard = 0": ("4 outcomes for 5", invariants.completed_shards_are_whole),
    "UPDATE shards SET owner = 'w' WHERE shard = 2": ("pending with owner w", invariants.leases_and_owners_go_together),
    "UPDATE shards SET owner = NULL WHERE shard = 1": ("leased with", invariants.leases_and_owners_go_together),
    "UPDATE shards SET records = 0 WHERE shard = 1": ("outcomes for 0", invariants.rows_and_counters_agree),
}


@pytest.mark.parametrize("statement", BENT)
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_what_the_database_would_refuse_is_noticed_as_well(busy: LedgerUnderTest, statement: str) -> None:
    """With the database's own rules switched off, the invariants still hold the line."""
    text, invariant = BENT[statement]
    with busy.ledger.database.read() as connection:
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        for trigger in (
            connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars().all()
        ):
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        connection.exec_driver_sql(statement)
    with pytest.raises(AssertionError, match=text):
        invariant(busy.ledger, busy.version.id)


def test_work_undone_is_noticed(busy: LedgerUnderTest) -> None:
    """A shard with fewer outcomes than before has lost some."""
    earlier = invariants.check(busy.ledger, busy.version.id)
    assert invariants.check(busy.ledger, busy.version.id, earlier=earlier) == earlier
    busy.ledger.interventions.retry_dead_letters(busy.version.id, "invalid_output", who="me")
    with pytest.raises(AssertionError, match=r"\{0: \(4, 3\)\}"):
        invariants.check(busy.ledger, busy.version.id, earlier=earlier)


@pytest.mark.parametrize("ids", [["0", "1", "2", "3"], ["0", "1", "2"], ["0", "1", "2", "x"], []])
def test_sealed_files_are_compared_with_the_rows(ledger: LedgerUnderTest, tmp_path: Path, ids: list[str]) -> None:
    """A row too few, too many or of another record is noticed, and so is another file."""
    objects, buffer = LocalObjects(tmp_path / "objects"), io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), buffer)
    data = buffer.getvalue()
    objects.put_if_absent("k", data)
    lease = ledger.claim()
    ledger.answer_all(lease)
    digest = hashlib.sha256(data).hexdigest()
    ledger.ledger.leases.complete(lease, SealedFile(key="k", sha256=digest, size=len(data), rows=4))
    ask = {"objects": objects, "id_column": "id"}
    if ids == ["0", "1", "2", "3"]:
        invariants.check(ledger.ledger, ledger.version.id, **ask)  # type: ignore[arg-type]
        objects.path("k").write_bytes(data + b" ")
    with pytest.raises(AssertionError, match=r"rows in the file|file and ledger differ|is another file"):
        invariants.check(ledger.ledger, ledger.version.id, **ask)  # type: ignore[arg-type]
