"""PostgreSQL keeps the rows of each job version in partitions of their own; SQLite does nothing here.

A version of tens of millions of records is retired by dropping its partitions: at once, with no row
deleted and nothing to vacuum. A partition is made aside and then attached, because `CREATE TABLE …
PARTITION OF` would stop every worker of every version until the transaction ends.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from batch_assets.storage.database import Database
from batch_assets.storage.tables import failures, outcomes

PARTITIONED = (outcomes, failures)


def partition_name(table: sa.Table, job_version: str) -> str:
    """A version id may be longer than PostgreSQL allows a name to be."""
    return f"{table.name}_{hashlib.sha256(job_version.encode()).hexdigest()[:16]}"


def attach_partitions(database: Database, job_version: str) -> None:
    """Make room for a version's rows; nothing happens when there is room already."""
    if not database.is_postgresql:
        return
    for table in PARTITIONED:
        name = partition_name(table, job_version)
        with database.write("attach") as connection:
            # One at a time: two planners of one version would both find no partition.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(name))))
            if sa.inspect(connection).has_table(name):
                continue
            literal = sa.literal(job_version).compile(
                dialect=connection.dialect, compile_kwargs={"literal_binds": True}
            )
            connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)")
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES IN ({literal})")


def drop_rows(database: Database, job_version: str) -> None:
    """Remove all rows of a version from the partitioned tables; twice is harmless."""
    for table in PARTITIONED:
        if database.is_postgresql:
            _drop_partition(database, table, partition_name(table, job_version))
        else:
            with database.write("drop_rows") as connection:
                connection.execute(sa.delete(table).where(table.c.job_version == job_version))


def _drop_partition(database: Database, table: sa.Table, name: str) -> None:
    with database.autocommit() as connection:
        attached = connection.scalar(
            sa.text("SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass(:name)"), {"name": name}
        )
        if attached is not None:
            # Detaching first, concurrently: DROP TABLE alone would stop all workers while it waits for a reader.
            how = "FINALIZE" if attached else "CONCURRENTLY"  # the former when an earlier try was cut short
            connection.exec_driver_sql(f"ALTER TABLE {table.name} DETACH PARTITION {name} {how}")
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
