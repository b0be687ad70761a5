"""The database itself refuses what must never be, whoever asks: each rule is broken with direct SQL."""

from __future__ import annotations

import itertools
import re

import pytest
import sqlalchemy as sa

from assets_tests.ledgers import LedgerUnderTest, failure, result
from batch_assets.core.leases import LEGAL_MOVES, SHARD_STATES
from batch_assets.storage.partitions import attach_partitions
from batch_assets.storage.tables import failures, metadata, outcomes, publications, shards, trials

SEALED = "sealed_key = 'k', sealed_sha256 = 'x'"
LEASED = "owner = 'w', lease_expires_at = 1"

# constraint -> what must be refused. Shard 0 is completed, 1 leased, 2 pending.
BREAKS: dict[str, list[str]] = {
    "only_leased_shards_have_an_owner": [
        "UPDATE shards SET owner = 'somebody' WHERE shard = 2",
        "UPDATE shards SET lease_expires_at = 1 WHERE shard = 2",
        "UPDATE shards SET claim_id = 'c' WHERE shard = 2",
        "UPDATE shards SET owner = NULL WHERE shard = 1",
        "UPDATE shards SET state = 'pending' WHERE shard = 1",
        "UPDATE shards SET state = 'leased', epoch = 1 WHERE shard = 2",
    ],
    "shards_begin_pending": [
        "INSERT INTO shards (job_version, shard, state, records, epoch, owner, lease_expires_at) "
        "VALUES ('v', 9, 'leased', 1, 1, 'w', 1)",
        "INSERT INTO shards (job_version, shard, state, records, results, sealed_key, sealed_sha256) "
        "VALUES ('v', 9, 'completed', 1, 1, 'k', 'x')",
        "INSERT INTO shards (job_version, shard, records, epoch) VALUES ('v', 9, 1, 3)",
    ],
    "shards_keep_their_records": [
        "UPDATE shards SET records = 1 WHERE shard = 2",
        "UPDATE shards SET shard = 7 WHERE shard = 2",
        "UPDATE shards SET job_version = 'v' WHERE shard = 2",
        "UPDATE shards SET reopened = 1 WHERE shard = 2",
    ],
    "completed_shards_are_whole_and_sealed|completed_shards_have_their_rows": [
        f"UPDATE shards SET state = 'completed', owner = NULL, lease_expires_at = NULL, claim_id = NULL, {SEALED} "
        "WHERE shard = 1",
        "UPDATE shards SET state = 'completed', owner = NULL, lease_expires_at = NULL, claim_id = NULL, "
        "results = records WHERE shard = 1",
    ],
    "only_completed_shards_are_sealed": ["UPDATE shards SET sealed_key = 'k' WHERE shard = 2"],
    "the_operator_is_told_why": [
        "UPDATE shards SET state = 'needs_operator', owner = NULL, lease_expires_at = NULL, claim_id = NULL "
        "WHERE shard = 1"
    ],
    "no_more_outcomes_than_records": [
        "UPDATE shards SET results = records + 1 WHERE shard = 1",
        "UPDATE shards SET results = records, dead_letters = 1 WHERE shard = 1",
    ],
    "shard_counts_are_counts": [
        "UPDATE shards SET results = -1 WHERE shard = 2",
        "UPDATE shards SET dead_letters = -1 WHERE shard = 2",
        "INSERT INTO shards (job_version, shard, records) VALUES ('v', 9, 0)",
    ],
    "every_claim_has_its_own_epoch": [
        f"UPDATE shards SET state = 'leased', {LEASED} WHERE shard = 2",
        f"UPDATE shards SET state = 'leased', epoch = epoch + 2, {LEASED} WHERE shard = 2",
        "UPDATE shards SET owner = 'thief' WHERE shard = 1",
        "UPDATE shards SET epoch = epoch - 1 WHERE shard = 1",
        "UPDATE shards SET epoch = epoch + 1 WHERE shard = 2",
        "UPDATE shards SET epoch = epoch + 1 WHERE shard = 1",
        "UPDATE shards SET claim_id = 'another' WHERE shard = 1",
    ],
    "terminal_shards_never_change": [
        "UPDATE shards SET results = results WHERE shard = 0",
        "UPDATE shards SET sealed_key = 'other' WHERE shard = 0",
        "UPDATE shards SET state = 'pending', sealed_key = NULL, sealed_sha256 = NULL WHERE shard = 0",
    ],
    "outcomes_never_change": ["UPDATE outcomes SET payload = '{}'", "UPDATE outcomes SET worker = 'thief'"],
}
INSERTS: dict[str, list[tuple[sa.Table, dict[str, object]]]] = {
    "outcome_is_result_or_dead_letter": [
        (outcomes, {"kind": "result", "payload": None}),
        (outcomes, {"kind": "result", "payload": "{}", "reason": "timeout"}),
        (outcomes, {"kind": "dead_letter", "payload": None, "reason": None}),
        (outcomes, {"kind": "dead_letter", "payload": "{}", "reason": "timeout"}),
        (outcomes, {"kind": "lost", "payload": "{}"}),
    ],
    "attempts_are_counted_from_one": [
        (failures, {"attempt": -1}),
        (failures, {"attempt": 1, "retry": -1}),
    ],
    "a_trial_runs_or_waits": [(trials, {"running": 3}), (trials, {"everyone": -1}), (trials, {"losses": -1})],
    "publication_kind_is_known": [(publications, {"kind": "rename"})],
}
FILLED = {
    outcomes: {"attempt": 1, "engine": "e", "worker": "w", "epoch": 1, "prompt_tokens": 0, "output_tokens": 0,
               "stored_at": 1.0, "record_id": "new", "shard": 1},
    failures: {"record_id": "new", "shard": 1, "reason": "timeout", "error": "e", "epoch": 1, "worker": "w", "at": 1.0},
    trials: {"shard": 1, "epoch": 1, "suspects": "[]", "everyone": 0, "running": 0, "losses": 0, "at": 1.0},
    publications: {"publication_id": "p", "job": "j", "to_version": "v", "who": "me", "verdicts": "{}", "at": 1.0,
                   "sequence": 1},
}  # fmt: skip


@pytest.fixture
def busy(ledger: LedgerUnderTest) -> LedgerUnderTest:
    """Shard 0 completed, shard 1 leased with one result and one failed attempt, shard 2 pending."""
    first = ledger.claim()
    ledger.answer_all(first)
    ledger.complete(first)
    second = ledger.claim()
    ledger.put(second, result("4"), failure("5", attempt=1))
    return ledger


@pytest.mark.parametrize(("constraint", "statement"), [(name, one) for name, all_ in BREAKS.items() for one in all_])
def test_direct_sql_that_breaks_a_rule_is_refused(busy: LedgerUnderTest, constraint: str, statement: str) -> None:
    """The refusal names the constraint, and no row changes."""
    before = dump(busy)
    with pytest.raises(sa.exc.IntegrityError, match=constraint), busy.ledger.database.write("test") as connection:
        connection.exec_driver_sql(statement)
    assert dump(busy) == before


@pytest.mark.parametrize(
    ("constraint", "number"), [(name, n) for name, all_ in INSERTS.items() for n in range(len(all_))]
)
def test_rows_that_break_a_rule_are_refused(busy: LedgerUnderTest, constraint: str, number: int) -> None:
    """An outcome is a result or a dead letter, whole; attempts are counted; a trial runs or waits."""
    table, broken = INSERTS[constraint][number]
    key = {} if table is publications else {"job_version": busy.version.id}
    with pytest.raises(sa.exc.IntegrityError, match=constraint), busy.ledger.database.write("test") as connection:
        connection.execute(sa.insert(table), {**key, **FILLED[table], **broken})


def test_every_named_rule_is_tried() -> None:
    """A constraint that no test tries to break may as well not be there."""
    named = {
        str(constraint.name)
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, sa.CheckConstraint)
    }
    # A shard begins as pending and moves to known states only, so triggers come before these two.
    assert named - {"shard_state_is_known", "leased_shards_have_an_epoch"} <= set(
        "|".join([*BREAKS, *INSERTS]).split("|")
    )


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(SHARD_STATES, 2)))
def test_the_database_knows_the_same_legal_moves_as_the_code(ledger: LedgerUnderTest, old: str, new: str) -> None:
    """Every other move is refused, even one that leaves the row in good shape."""
    shape = {
        "pending": f"owner = NULL, lease_expires_at = NULL, claim_id = NULL, {unsealed()}",
        "leased": f"{LEASED}, {unsealed()}",
        "completed": f"owner = NULL, lease_expires_at = NULL, claim_id = NULL, results = records, {SEALED}",
        "needs_operator": f"owner = NULL, lease_expires_at = NULL, claim_id = NULL, trouble = 't', {unsealed()}",
        "cancelled": f"owner = NULL, lease_expires_at = NULL, claim_id = NULL, {unsealed()}",
    }

    def move(before: str, after: str) -> str:
        epoch = "epoch = epoch + 1, " if (before, after) == ("pending", "leased") else ""
        reopened = "reopened = reopened + 1, " if (before, after) == ("completed", "pending") else ""
        return f"UPDATE shards SET {epoch}{reopened}state = '{after}', {shape[after]} WHERE job_version = 'v'"

    attach_partitions(ledger.ledger.database, "v")
    way = {"pending": [], "leased": ["leased"], "cancelled": ["cancelled"]}.get(old, ["leased", old])
    with ledger.ledger.database.write("test") as connection:
        connection.execute(sa.insert(outcomes), {**FILLED[outcomes], "job_version": "v", "shard": 0, "kind": "result",
                                                 "payload": "{}"})  # fmt: skip
        connection.execute(sa.insert(shards), {"job_version": "v", "shard": 0, "records": 1, "results": 1})
        for before, after in itertools.pairwise(["pending", *way]):
            connection.exec_driver_sql(move(before, after))
    if (old, new) in LEGAL_MOVES:
        with ledger.ledger.database.write("test") as connection:
            assert connection.exec_driver_sql(move(old, new)).rowcount == 1
    else:
        with (
            pytest.raises(sa.exc.IntegrityError, match="constraint "),
            ledger.ledger.database.write("test") as connection,
        ):
            connection.exec_driver_sql(move(old, new))


def unsealed() -> str:
    return "sealed_key = NULL, sealed_sha256 = NULL"


def test_the_tables_are_what_the_code_believes(ledger: LedgerUnderTest) -> None:
    """Migrations and table definitions agree: columns, keys, indexes, checks, on both databases."""
    with ledger.ledger.database.read() as connection:
        inspector = sa.inspect(connection)
        for name, table in metadata.tables.items():
            found = {column["name"]: column["nullable"] for column in inspector.get_columns(name)}
            assert found == {column.name: column.nullable for column in table.c}, name
            assert inspector.get_pk_constraint(name)["constrained_columns"] == [c.name for c in table.primary_key], name
            indexes = {
                index["name"]: index["column_names"]
                for index in inspector.get_indexes(name)
                if "duplicates_constraint" not in index
            }
            assert indexes == {index.name: [c.name for c in index.columns] for index in table.indexes}, name
            checks = {check["name"]: words(check["sqltext"]) for check in inspector.get_check_constraints(name)}
            expected = {
                str(one.name): words(str(one.sqltext))
                for one in table.constraints
                if isinstance(one, sa.CheckConstraint)
            }
            assert checks.keys() == expected.keys(), name
            if connection.dialect.name == "sqlite":  # PostgreSQL gives the rule back in its own words
                assert checks == expected


def words(sql: str) -> list[str]:
    return re.findall(r"[\w']+|[<>=+]+", sql)


def dump(ledger: LedgerUnderTest) -> list[tuple[object, ...]]:
    with ledger.ledger.database.read() as connection:
        return [
            tuple(row)
            for table in (shards, outcomes)
            for row in connection.execute(sa.select(table).order_by(*table.primary_key))
        ]
