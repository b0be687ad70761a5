"""One SQL database: connections, transactions, and its clock. SQLite or PostgreSQL by its address.

On both, a transition is one conditional statement, and the database orders those who race:

- SQLite has one writer at a time. Every write transaction begins IMMEDIATE: one that reads first and
  writes later would be refused at once when another writer came between, whatever the busy timeout.
- PostgreSQL locks rows. A write that waited for a row sees it as the one before has left it, and its
  condition is judged on that.

Time is the database's, never a worker's, unless a test passes a clock of its own.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from batch_assets.errors import InputError, StoreError
from batch_assets.failpoints import failpoint
from batch_assets.storage.file_systems import refuse_network_file_system
from batch_assets.storage.migrate import migrate

BUSY_TIMEOUT_MS = 60_000  # SQLite's waiting is unfair; a renewal may sit behind many flushes
_PAUSE_MS = 20

# A server that has vanished without a word must not hang a worker for longer than its lease, and a
# worker that is frozen in the middle of a transaction must not keep its row locks for ever.
POSTGRESQL_CONNECTION = {
    "application_name": "batch-assets",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
POSTGRESQL_SESSION = "SET statement_timeout = '5min'; SET idle_in_transaction_session_timeout = '30s'"


class Database:
    """A ledger database. `clock` replaces the database's own clock; for tests.

    Raises InputError when the address is not one that can be used, StoreError when the database
    cannot be reached.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._engine = _sqlite(_parsed(url)) if _parsed(url).get_backend_name() == "sqlite" else _postgresql(url)
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            self._bring_up_to_date()
        except BaseException:
            self.close()  # nobody gets to hold what could not be opened
            raise

    def _bring_up_to_date(self) -> None:
        with self.read() as connection:
            is_current = migrate.is_current(connection)
        if not is_current:
            with self.write("migrate") as connection:
                migrate.upgrade(connection)

    @property
    def is_postgresql(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @contextmanager
    def write(self, name: str) -> Iterator[sa.Connection]:
        """A write transaction; commits on a clean exit, rolls back on any exception.

        `name` names its two failpoints. Raises StoreError when the database fails; after a lost
        answer nobody knows whether the transaction was committed, so callers send it again.
        """
        with self._explained():
            with self._engine.begin() as connection:
                yield connection
                failpoint(f"{name}.before_commit")
            failpoint(f"{name}.after_commit")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Reads that each see the latest committed state."""
        with self._explained(), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[sa.Connection]:
        """For the few statements that cannot run in a transaction."""
        with self.read() as connection:
            yield connection

    def now(self) -> sa.ColumnElement[float]:
        """The current time in seconds since 1970, as an SQL expression."""
        if self._clock is not None:
            return sa.literal(self._clock(), sa.Float)
        if self.is_postgresql:
            # now() would be the start of the transaction: a lease written late in one is born old.
            return sa.literal_column("extract(epoch from clock_timestamp())::float8", sa.Float)
        # julianday keeps milliseconds; unixepoch('subsec') needs SQLite 3.42.
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Float)

    def close(self) -> None:
        """Close all pooled connections."""
        self._engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise  # a broken rule is a fault of ours, not of the store
        except DBAPIError as error:
            raise StoreError(_explain(error.orig)) from error
        except PoolTimeoutError as error:
            raise StoreError(_explain(error)) from error


_SPELLING = "Use postgresql+psycopg://user:password@host/database or, on one machine, sqlite:////path/to/ledger.sqlite."
_HOST = re.compile(r"[A-Za-z0-9._:%-]*")  # names, and addresses of both kinds


def _parsed(url: str) -> sa.URL:
    """The address, if it is one that we can use. Never repeats it: there may be a password anywhere in it."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InputError(f"BATCH_ASSETS_LEDGER is no database address. {_SPELLING}") from None
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise InputError(f"BATCH_ASSETS_LEDGER: {parsed.drivername} is not supported. {_SPELLING}")
    if parsed.host is not None and not _HOST.fullmatch(parsed.host):
        raise InputError(
            "BATCH_ASSETS_LEDGER: the part after the last @ is no host name. Characters such as @ : / in a password are "
            f"written as %40 %3A %2F. {_SPELLING}"
        )
    return parsed


def _sqlite(url: sa.URL) -> sa.Engine:
    path = Path(url.database or "")
    if not path.is_absolute():
        raise InputError(
            "BATCH_ASSETS_LEDGER names no absolute path, and every process has to find the same file. "
            "Write sqlite:////path/to/ledger.sqlite, with four slashes."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The ledger cannot be kept in {path.parent} ({error.strerror}).") from None
    refuse_network_file_system(path)
    engine = sa.create_engine(url)
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _postgresql(address: str) -> sa.Engine:
    url = _parsed(address)
    try:
        # Asking first keeps a connection that the server has closed meanwhile from failing a statement.
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=POSTGRESQL_CONNECTION)
    except ModuleNotFoundError:
        raise InputError(
            "BATCH_ASSETS_LEDGER names PostgreSQL, but its driver is not installed: pip install 'batch-assets[postgres]'."
        ) from None
    event.listen(engine, "connect", _configure_postgresql)
    return engine


def _configure_sqlite(connection: Any, _record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_immediate, not by the driver
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA synchronous=FULL")
    _switch_to_wal(connection)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Once in a database's life this changes the file, and does not wait for others who open it just then."""
    tries = BUSY_TIMEOUT_MS // _PAUSE_MS
    for left in reversed(range(tries)):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not left:
                raise
            time.sleep(_PAUSE_MS / 1000)


def _configure_postgresql(connection: Any, _record: ConnectionPoolEntry) -> None:
    connection.autocommit = True
    connection.execute(POSTGRESQL_SESSION)
    connection.autocommit = False


def _begin_immediate(connection: sa.Connection) -> None:
    # The autocommit reader must not take the write lock.
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _explain(cause: object) -> str:
    text = " ".join(str(cause).split()).rstrip(".?!")
    return f"The ledger database could not do its work: {text}. Mend the cause and try again; nothing is done twice."
