"""The ledger's tables. The database enforces what the invariants say; the code only asks nicely.

I1 and I4 are one primary key: a record of a version has at most one row in `outcomes`, and that
row is either a result or a dead letter. Keys lead with the shard, because inserts in random key
order cost four times the throughput. Times are seconds since 1970 by the database's clock.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, Float, Index, Integer, MetaData, String, Table, Text

from batch_assets.core.leases import SHARD_STATES

metadata = MetaData()

_states = ", ".join(f"'{state}'" for state in SHARD_STATES)

versions = Table(
    "versions",
    metadata,
    Column("job_version", String, primary_key=True),
    Column("job", String, nullable=False),
    Column("label", String, nullable=False),
    Column("digest", String, nullable=False, unique=True),
    Column("file_sha256", String, nullable=False),
    Column("records", Integer, nullable=False),
    Column("shards", Integer, nullable=False),
    Column("pinned_at", Float, nullable=False),
    Column("planned_at", Float),
    Column("moved_files", Text),  # JSON: digest -> path of snapshot files that were moved after pinning
    Index("versions_by_job", "job", "pinned_at"),
)

shards = Table(
    "shards",
    metadata,
    Column("job_version", String, primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("state", String, nullable=False, server_default="pending"),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("owner", String),
    Column("lease_expires_at", Float),
    Column("records", Integer, nullable=False),
    Column("results", Integer, nullable=False, server_default="0"),
    Column("dead_letters", Integer, nullable=False, server_default="0"),
    Column("duplicates_discarded", Integer, nullable=False, server_default="0"),
    Column("last_put_id", String),
    Column("sealed_key", String),
    Column("sealed_sha256", String),
    Column("sealed_bytes", Integer),
    Column("completed_by", String),
    Column("completed_at", Float),
    CheckConstraint(f"state IN ({_states})", name="shard_state_is_known"),
    CheckConstraint(
        "(state = 'leased') = (owner IS NOT NULL) AND (state = 'leased') = (lease_expires_at IS NOT NULL)",
        name="only_leased_shards_have_an_owner",
    ),
    CheckConstraint(
        "state <> 'completed' OR (results + dead_letters = records AND sealed_key IS NOT NULL"
        " AND sealed_sha256 IS NOT NULL)",
        name="completed_shards_are_whole_and_sealed",
    ),
    CheckConstraint("results + dead_letters <= records", name="no_more_outcomes_than_records"),
    Index("shards_by_state", "job_version", "state", "shard"),
    sqlite_with_rowid=False,
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("job_version", String, primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("record_id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("payload", Text),
    Column("finish_reason", String),
    Column("reason", String),
    Column("error", Text),
    Column("engine", String, nullable=False),
    Column("worker", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("stored_at", Float, nullable=False),
    CheckConstraint(
        "(kind = 'result' AND payload IS NOT NULL AND reason IS NULL)"
        " OR (kind = 'dead_letter' AND payload IS NULL AND reason IS NOT NULL)",
        name="outcome_is_result_or_dead_letter",
    ),
    Index(
        "outcomes_dead_letters",
        "job_version",
        "shard",
        "record_id",
        sqlite_where=sa.text("kind = 'dead_letter'"),
        postgresql_where=sa.text("kind = 'dead_letter'"),
    ),
    sqlite_with_rowid=False,
)

failures = Table(
    "failures",
    metadata,
    Column("job_version", String, primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("record_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("reason", String, nullable=False),
    Column("error", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("worker", String, nullable=False),
    Column("at", Float, nullable=False),
    sqlite_with_rowid=False,
)

# What was done in each ten seconds, for rates and forecasts: a few hundred rows an hour.
throughput = Table(
    "throughput",
    metadata,
    Column("job_version", String, primary_key=True),
    Column("bucket", Integer, primary_key=True),
    Column("outcomes", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("job_version", String, primary_key=True),
    Column("check_name", String, primary_key=True),
    Column("content_sha256", String, nullable=False),
    Column("basis_sha256", String, nullable=False),
    Column("passed", Integer, nullable=False),
    Column("blocking", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", Float, nullable=False),
)

publications = Table(
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
    CheckConstraint("kind IN ('publish', 'rollback')", name="publication_kind_is_known"),
    Index("publications_by_job", "job", "at"),
)

pointers = Table(
    "pointers",
    metadata,
    Column("job", String, primary_key=True),
    Column("job_version", String, nullable=False),
    Column("publication_id", String, nullable=False),
)
