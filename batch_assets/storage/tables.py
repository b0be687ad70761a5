"""The ledger's tables as the code speaks of them.

`storage/migrations` creates them, and adds what SQLAlchemy has no word for: triggers that keep shards
to the legal moves, and on PostgreSQL the partitions. A test compares the two.

I1 and I4 are one primary key: a record of a version has at most one row in `outcomes`, and that
row is either a result or a dead letter. Keys lead with the shard, because inserts in random key
order cost four times the throughput. Times are seconds since 1970 by the database's clock.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, Float, Index, MetaData, String, Table, Text

from batch_assets.core.leases import SHARD_STATES

metadata = MetaData()

# 64 bits everywhere; SQLite's INTEGER has them under its usual name.
Integer = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
# Keys sort by their bytes on every database, whatever language it was set up for.
Key = String().with_variant(String(collation="C"), "postgresql")

_states = ", ".join(f"'{state}'" for state in SHARD_STATES)

versions = Table(
    "versions",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("job", String, nullable=False),
    Column("label", String, nullable=False),
    Column("digest", String, nullable=False, unique=True),
    Column("file_sha256", String, nullable=False),
    Column("records", Integer, nullable=False),
    Column("shards", Integer, nullable=False),
    Column("pinned_at", Float, nullable=False),
    Column("planned_at", Float),
    Column("moved_files", Text),  # JSON: digest -> path of snapshot files that were moved after pinning
    Column("cancelled_at", Float),
    Column("retired_at", Float),  # its rows in `outcomes` and `failures` are gone
    Column("base_version", Key),  # of an incremental version: what it holds the changes to
    Column("batch", String),  # of an incremental version: the nightly batch that it was made from
    Index("versions_by_job", "job", "pinned_at"),
)

shards = Table(
    "shards",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("state", String, nullable=False, server_default="pending"),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("owner", String),
    Column("claim_id", String),  # which call made the lease: that call, sent again, finds its lease
    Column("lease_expires_at", Float),
    Column("records", Integer, nullable=False),
    Column("results", Integer, nullable=False, server_default="0"),
    Column("dead_letters", Integer, nullable=False, server_default="0"),
    Column("duplicates_discarded", Integer, nullable=False, server_default="0"),
    Column("last_put_id", String),
    Column("claimed_outcomes", Integer, nullable=False, server_default="0"),  # how many there were at the last claim
    Column("recoveries", Integer, nullable=False, server_default="0"),  # in a row, without progress
    Column("trouble", Text),  # what is known of the last worker that failed here
    Column("reopened", Integer, nullable=False, server_default="0"),
    Column("sealed_key", String),
    Column("sealed_sha256", String),
    Column("sealed_bytes", Integer),
    Column("completed_by", String),
    Column("completed_at", Float),
    CheckConstraint(f"state IN ({_states})", name="shard_state_is_known"),
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
    Index("shards_by_state", "job_version", "state", "shard"),
    sqlite_with_rowid=False,
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("record_id", Key, primary_key=True),  # as storage/record_keys.py writes it
    Column("long_record_id", Text),  # the id itself, where it is too long for a key
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
    postgresql_partition_by="LIST (job_version)",
)

failures = Table(
    "failures",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("record_id", Key, primary_key=True),
    Column("retry", Integer, primary_key=True, autoincrement=False, server_default="0"),  # 0: counts now
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("long_record_id", Text),
    Column("reason", String, nullable=False),
    Column("error", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("worker", String, nullable=False),
    Column("at", Float, nullable=False),
    CheckConstraint("attempt >= 0 AND retry >= 0", name="attempts_are_counted_from_one"),
    sqlite_with_rowid=False,
    postgresql_partition_by="LIST (job_version)",
)

# Who is suspected of killing engines or workers, by shard; see core/suspects.py.
trials = Table(
    "trials",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    Column("suspects", Text, nullable=False),  # JSON: groups of record ids, the one on trial first
    Column("everyone", Integer, nullable=False),  # 1: all others of the shard run in groups as well
    Column("running", Integer, nullable=False),  # 1: the first group is in the engine; 2: and its worker has died
    Column("losses", Integer, nullable=False),  # workers lost with a single record, and not heard of since
    Column("at", Float, nullable=False),
    CheckConstraint("running IN (0, 1, 2) AND everyone IN (0, 1) AND losses >= 0", name="a_trial_runs_or_waits"),
)

# Dead letters that an operator has put back, class by class; `failures.retry` points here.
retries = Table(
    "retries",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("retry", Integer, primary_key=True, autoincrement=False),
    Column("reason", String, nullable=False),
    Column("records", Integer, nullable=False),
    Column("who", String, nullable=False),
    Column("at", Float, nullable=False),
)

# Work that ended in no stored result, by cause. One row per lease and cause, so that writing it
# again after a lost answer adds nothing.
waste = Table(
    "waste",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("cause", String, primary_key=True),
    Column("records", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
)

# What was done in each ten seconds, for rates and forecasts: a few hundred rows an hour.
throughput = Table(
    "throughput",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("outcomes", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("job_version", Key, primary_key=True),
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
    Column("sequence", Integer, nullable=False),  # of the job's moves; the clock may give two the same time
    Column("override", Text),  # why it was published although a check that blocks had failed
    CheckConstraint("kind IN ('publish', 'rollback')", name="publication_kind_is_known"),
    Index("publications_by_job", "job", "sequence", unique=True),
)

pointers = Table(
    "pointers",
    metadata,
    Column("job", String, primary_key=True),
    Column("job_version", String, nullable=False),
    Column("publication_id", String, nullable=False),
)

# What an incremental version is published as: base and changes merged into files of their own. An
# ordinary version has no row here; it is published as its sealed files.
file_sets = Table(
    "file_sets",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("job", String, nullable=False),
    Column("content_sha256", String, nullable=False),  # of the version's own content, which retries can change
    Column("manifest_key", String, nullable=False),
    Column("manifest_sha256", String, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("dead_letters", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("at", Float, nullable=False),
)

# Versions whose published files retention has removed: they cannot be rolled back to any more.
swept = Table(
    "swept",
    metadata,
    Column("job_version", Key, primary_key=True),
    Column("who", String, nullable=False),
    Column("at", Float, nullable=False),
)
