"""One SQL database: connections, transactions, and its clock.

Every write transaction on SQLite begins IMMEDIATE: one that reads first and writes later would be
refused at once when another writer came between, whatever the busy timeout. Time is the
database's, never a worker's, unless a test passes a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.pool import ConnectionPoolEntry

from batch_assets.errors import StoreError
from batch_assets.storage.tables import metadata

BUSY_TIMEOUT_MS = 60_000  # SQLite's waiting is unfair; a renewal may sit behind many flushes


class Database:
    """A ledger database. `clock` replaces the database's own clock; for tests."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        self._engine = sa.create_engine(parsed)
        event.listen(self._engine, "connect", _configure_sqlite)
        event.listen(self._engine, "begin", _begin_immediate)
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with self.write() as connection:
            metadata.create_all(connection)

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A write transaction; commits on a clean exit, rolls back on any exception."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise  # a broken rule is a fault of ours, not of the store
        except DatabaseError as error:
            raise StoreError(_explain(error)) from error

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Reads that each see the latest committed state."""
        try:
            with self._reader.connect() as connection:
                yield connection
        except IntegrityError:
            raise  # a broken rule is a fault of ours, not of the store
        except DatabaseError as error:
            raise StoreError(_explain(error)) from error

    def now(self) -> sa.ColumnElement[float]:
        """The current time in seconds since 1970, as an SQL expression."""
        if self._clock is not None:
            return sa.literal(self._clock(), sa.Float)
        # julianday keeps milliseconds; unixepoch('subsec') needs SQLite 3.42.
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Float)

    def close(self) -> None:
        """Close all pooled connections."""
        self._engine.dispose()


def _configure_sqlite(connection: Any, _record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_immediate, not by the driver
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sa.Connection) -> None:
    # The autocommit reader must not take the write lock.
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _explain(error: DatabaseError) -> str:
    return (
        f"The ledger database could not do its work: {error.orig}. Nothing was changed; mend the cause and try again."
    )
