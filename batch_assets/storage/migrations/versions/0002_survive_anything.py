"""PostgreSQL; recoveries, trials, retries and waste; legal moves enforced by the database.

A SQLite ledger of 0.1.0 is rebuilt with its rows: SQLite cannot add a constraint to a table.
On PostgreSQL the tables with one row a record are partitioned by job version; each version's
partitions are attached when it is planned (`storage/partitions.py`).
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import CheckConstraint, Column, Float, MetaData, String, Table, Text

from batch_assets.storage.record_keys import key_columns

revision = "0002"
down_revision = "0001"

Integer = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
Key = String().with_variant(String(collation="C"), "postgresql")


def _count(name: str, **options: object) -> Column[int]:
    return Column(name, Integer, nullable=False, **options)  # type: ignore[arg-type]


def _version() -> Column[str]:
    return Column("job_version", Key, primary_key=True)


def _key(name: str) -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


def _tables() -> list[Table]:
    metadata = MetaData()
    Table(
        "versions",
        metadata,
        _version(),
        Column("job", String, nullable=False),
        Column("label", String, nullable=False),
        Column("digest", String, nullable=False, unique=True),
        Column("file_sha256", String, nullable=False),
        _count("records"),
        _count("shards"),
        Column("pinned_at", Float, nullable=False),
        Column("planned_at", Float),
        Column("moved_files", Text),
        Column("cancelled_at", Float),
        Column("retired_at", Float),
        sa.Index("versions_by_job", "job", "pinned_at"),
    )
    Table(
        "shards",
        metadata,
        _version(),
        _key("shard"),
        Column("state", String, nullable=False, server_default="pending"),
        _count("epoch", server_default="0"),
        Column("owner", String),
        Column("claim_id", String),
        Column("lease_expires_at", Float),
        _count("records"),
        _count("results", server_default="0"),
        _count("dead_letters", server_default="0"),
        _count("duplicates_discarded", server_default="0"),
        Column("last_put_id", String),
        _count("claimed_outcomes", server_default="0"),
        _count("recoveries", server_default="0"),
        Column("trouble", Text),
        _count("reopened", server_default="0"),
        Column("sealed_key", String),
        Column("sealed_sha256", String),
        Column("sealed_bytes", Integer),
        Column("completed_by", String),
        Column("completed_at", Float),
        CheckConstraint(
            "state IN ('pending', 'leased', 'completed', 'needs_operator', 'cancelled')", name="shard_state_is_known"
        ),
        CheckConstraint(
            "(state = 'leased') = (owner IS NOT NULL) AND (state = 'leased') = (lease_expires_at IS NOT NULL)"
            " AND (state = 'leased' OR claim_id IS NULL)",
            name="only_leased_shards_have_an_owner",
        ),
        CheckConstraint("state <> 'leased' OR epoch > 0", name="leased_shards_have_an_epoch"),
        CheckConstraint(
            "state <> 'completed' OR (results + dead_letters = records AND sealed_key IS NOT NULL"
            " AND sealed_sha256 IS NOT NULL)",
            name="completed_shards_are_whole_and_sealed",
        ),
        CheckConstraint("state = 'completed' OR sealed_key IS NULL", name="only_completed_shards_are_sealed"),
        CheckConstraint("state <> 'needs_operator' OR trouble IS NOT NULL", name="the_operator_is_told_why"),
        CheckConstraint("results + dead_letters <= records", name="no_more_outcomes_than_records"),
        CheckConstraint(
            "results >= 0 AND dead_letters >= 0 AND records > 0 AND epoch >= 0", name="shard_counts_are_counts"
        ),
        sa.Index("shards_by_state", "job_version", "state", "shard"),
        sqlite_with_rowid=False,
    )
    Table(
        "outcomes",
        metadata,
        _version(),
        _key("shard"),
        Column("record_id", Key, primary_key=True),
        Column("long_record_id", Text),
        Column("kind", String, nullable=False),
        _count("attempt"),
        Column("payload", Text),
        Column("finish_reason", String),
        Column("reason", String),
        Column("error", Text),
        Column("engine", String, nullable=False),
        Column("worker", String, nullable=False),
        _count("epoch"),
        _count("prompt_tokens"),
        _count("output_tokens"),
        Column("stored_at", Float, nullable=False),
        CheckConstraint(
            "(kind = 'result' AND payload IS NOT NULL AND reason IS NULL)"
            " OR (kind = 'dead_letter' AND payload IS NULL AND reason IS NOT NULL)",
            name="outcome_is_result_or_dead_letter",
        ),
        sa.Index(
            "outcomes_dead_letters",
            "job_version",
            "shard",
            "record_id",
            sqlite_where=sa.text("kind = 'dead_letter'"),
            postgresql_where=sa.text("kind = 'dead_letter'"),
        ),
        sqlite_with_rowid=False,
        postgresql_partition_by="LIST (job_version)",
    )
    Table(
        "failures",
        metadata,
        _version(),
        _key("shard"),
        Column("record_id", Key, primary_key=True),
        Column("retry", Integer, primary_key=True, autoincrement=False, server_default="0"),
        _key("attempt"),
        Column("long_record_id", Text),
        Column("reason", String, nullable=False),
        Column("error", Text, nullable=False),
        _count("epoch"),
        Column("worker", String, nullable=False),
        Column("at", Float, nullable=False),
        CheckConstraint("attempt >= 0 AND retry >= 0", name="attempts_are_counted_from_one"),
        sqlite_with_rowid=False,
        postgresql_partition_by="LIST (job_version)",
    )
    Table(
        "trials",
        metadata,
        _version(),
        _key("shard"),
        _count("epoch"),
        Column("suspects", Text, nullable=False),
        _count("everyone"),
        _count("running"),
        _count("losses"),
        Column("at", Float, nullable=False),
        CheckConstraint("running IN (0, 1, 2) AND everyone IN (0, 1) AND losses >= 0", name="a_trial_runs_or_waits"),
    )
    Table(
        "retries",
        metadata,
        _version(),
        _key("retry"),
        Column("reason", String, nullable=False),
        _count("records"),
        Column("who", String, nullable=False),
        Column("at", Float, nullable=False),
    )
    Table(
        "waste",
        metadata,
        _version(),
        _key("shard"),
        _key("epoch"),
        Column("cause", String, primary_key=True),
        _count("records"),
        _count("prompt_tokens"),
        _count("output_tokens"),
    )
    Table(
        "throughput",
        metadata,
        _version(),
        _key("bucket"),
        _count("outcomes"),
        _count("prompt_tokens"),
        _count("cached_tokens"),
        _count("output_tokens"),
    )
    Table(
        "verdicts",
        metadata,
        _version(),
        Column("check_name", String, primary_key=True),
        Column("content_sha256", String, nullable=False),
        Column("basis_sha256", String, nullable=False),
        _count("passed"),
        _count("blocking"),
        Column("body", Text, nullable=False),
        Column("at", Float, nullable=False),
    )
    Table(
        "publications",
        metadata,
        Column("publication_id", String, primary_key=True),
        Column("job", String, nullable=False),
        Column("kind", String, nullable=False),
        Column("from_version", String),
        Column("to_version", String, nullable=False),
        Column("who", String, nullable=False),
        Column("verdicts", Text, nullable=False),
        Column("at", Float, nullable=False),
        _count("sequence"),
        CheckConstraint("kind IN ('publish', 'rollback')", name="publication_kind_is_known"),
        sa.Index("publications_by_job", "job", "sequence", unique=True),
    )
    Table(
        "pointers",
        metadata,
        Column("job", String, primary_key=True),
        Column("job_version", String, nullable=False),
        Column("publication_id", String, nullable=False),
    )
    return list(metadata.sorted_tables)


# (name, event, table, when it is refused). A refusal names the trigger, as a constraint does.
_ILLEGAL_MOVE = """OLD.state <> NEW.state AND (OLD.state || '>' || NEW.state) NOT IN (
    'pending>leased', 'leased>pending', 'leased>completed', 'leased>needs_operator', 'needs_operator>pending',
    'pending>cancelled', 'leased>cancelled', 'needs_operator>cancelled', 'completed>pending')"""
# A claim takes a pending shard and gives it the next epoch; whoever has it keeps it until it is pending again.
_ILLEGAL_EPOCH = """(NEW.state = 'leased' AND OLD.state = 'pending' AND NEW.epoch <> OLD.epoch + 1)
    OR (NOT (NEW.state = 'leased' AND OLD.state = 'pending') AND NEW.epoch <> OLD.epoch)
    OR (NEW.state = 'leased' AND OLD.state = 'leased'
        AND (NEW.owner <> OLD.owner OR COALESCE(NEW.claim_id, '') <> COALESCE(OLD.claim_id, '')))"""
_TERMINAL_CHANGE = """OLD.state = 'cancelled'
    OR (OLD.state = 'completed' AND NOT (NEW.state = 'pending' AND NEW.reopened = OLD.reopened + 1))"""
_OTHER_RECORDS = """NEW.records <> OLD.records OR NEW.shard <> OLD.shard OR NEW.job_version <> OLD.job_version
    OR (NEW.reopened <> OLD.reopened AND OLD.state <> 'completed')"""
_NOT_WHOLE = """NEW.state = 'completed' AND OLD.state <> 'completed' AND NEW.records <> (
    SELECT count(*) FROM outcomes WHERE outcomes.job_version = NEW.job_version AND outcomes.shard = NEW.shard)"""
_TRIGGERS = (
    ("shards_make_legal_moves_only", "UPDATE", "shards", _ILLEGAL_MOVE),
    ("every_claim_has_its_own_epoch", "UPDATE", "shards", _ILLEGAL_EPOCH),
    ("terminal_shards_never_change", "UPDATE", "shards", _TERMINAL_CHANGE),
    ("shards_keep_their_records", "UPDATE", "shards", _OTHER_RECORDS),
    ("completed_shards_have_their_rows", "UPDATE", "shards", _NOT_WHOLE),
    ("shards_begin_pending", "INSERT", "shards", "NEW.state <> 'pending' OR NEW.epoch <> 0"),
    ("outcomes_never_change", "UPDATE", "outcomes", "1 = 1"),
)

# Ids that are spelled otherwise as keys, see `storage/record_keys.py`.
_ODD_KEY = "length(CAST(record_id AS BLOB)) > 1000 OR instr(record_id, char(0)) OR instr(record_id, char(1))"


def upgrade() -> None:
    """Create the tables and triggers, and take the rows of an older ledger over."""
    connection = op.get_bind()
    tables = _tables()
    old = set(sa.inspect(connection).get_table_names())
    if "versions" in old:
        _set_aside(connection, old, tables)
    for table in tables:
        table.create(connection)
        if table.name in old:
            _take_over(connection, table)
    for name, event, table_name, condition in _TRIGGERS:
        _create_trigger(connection, name, event, table_name, condition)


def _set_aside(connection: sa.Connection, old: set[str], tables: list[Table]) -> None:
    for name in sorted(old & {table.name for table in tables}):
        for index in sa.inspect(connection).get_indexes(name):
            op.execute(f'DROP INDEX "{index["name"]}"')  # index names are the database's, not the table's
        op.rename_table(name, f"old_{name}")


def _take_over(connection: sa.Connection, table: Table) -> None:
    known = {column["name"] for column in sa.inspect(connection).get_columns(f"old_{table.name}")}
    taken = {f'"{column.name}"': f'"{column.name}"' for column in table.c if column.name in known}
    if table.name == "publications":
        taken["sequence"] = "row_number() OVER (PARTITION BY job ORDER BY at, rowid)"
    usual = f"NOT ({_ODD_KEY})" if "record_id" in known else "1 = 1"
    op.execute(
        f"INSERT INTO {table.name} ({', '.join(taken)}) SELECT {', '.join(taken.values())} "
        f"FROM old_{table.name} WHERE {usual}"
    )
    if "record_id" in known:
        # 0.1.0 had every id as it was for its key.
        for row in connection.execute(sa.text(f"SELECT * FROM old_{table.name} WHERE {_ODD_KEY}")):
            connection.execute(sa.insert(table), {**row._mapping, **key_columns(row.record_id)})
    op.drop_table(f"old_{table.name}")
    if table.name == "shards":
        # Leases of the old release carry on; what they have stored is no progress of a claim to come.
        op.execute("UPDATE shards SET claimed_outcomes = results + dead_letters")


def _create_trigger(connection: sa.Connection, name: str, event: str, table: str, condition: str) -> None:
    if connection.dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, 'constraint {name}'); END"
        )
        return
    # The condition stands in the function: PostgreSQL's WHEN may not look into other tables.
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {condition} THEN "
        f"RAISE EXCEPTION 'constraint {name}' USING ERRCODE = 'check_violation', CONSTRAINT = '{name}', "
        f"TABLE = '{table}'; END IF; RETURN NEW; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
