"""A ledger of an earlier release is brought up to date with every row it has; a newer one is left alone."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from assets_tests import invariants
from assets_tests.ledgers import Clock, LedgerUnderTest, result, small_version
from assets_tests.postgresql import Server
from batch_assets.core.leases import Lease
from batch_assets.errors import Fenced, StoreError, VersionError
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.migrate import HEAD
from batch_assets.storage.outcomes import Put
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import metadata

# Release 0.1.0 made its tables with these statements.
RELEASE_0_1_0 = """
CREATE TABLE versions (
    job_version VARCHAR NOT NULL, job VARCHAR NOT NULL, label VARCHAR NOT NULL, digest VARCHAR NOT NULL,
    file_sha256 VARCHAR NOT NULL, records INTEGER NOT NULL, shards INTEGER NOT NULL, pinned_at FLOAT NOT NULL,
    planned_at FLOAT, moved_files TEXT, PRIMARY KEY (job_version), UNIQUE (digest));
CREATE INDEX versions_by_job ON versions (job, pinned_at);
CREATE TABLE shards (
    job_version VARCHAR NOT NULL, shard INTEGER NOT NULL, state VARCHAR DEFAULT 'pending' NOT NULL,
    epoch INTEGER DEFAULT '0' NOT NULL, owner VARCHAR, lease_expires_at FLOAT, records INTEGER NOT NULL,
    results INTEGER DEFAULT '0' NOT NULL, dead_letters INTEGER DEFAULT '0' NOT NULL,
    duplicates_discarded INTEGER DEFAULT '0' NOT NULL, last_put_id VARCHAR, sealed_key VARCHAR, sealed_sha256 VARCHAR,
    sealed_bytes INTEGER, completed_by VARCHAR, completed_at FLOAT, PRIMARY KEY (job_version, shard),
    CONSTRAINT shard_state_is_known
        CHECK (state IN ('pending', 'leased', 'completed', 'needs_operator', 'cancelled')),
    CONSTRAINT only_leased_shards_have_an_owner
        CHECK ((state = 'leased') = (owner IS NOT NULL) AND (state = 'leased') = (lease_expires_at IS NOT NULL)),
    CONSTRAINT completed_shards_are_whole_and_sealed
        CHECK (state <> 'completed' OR (results + dead_letters = records AND sealed_key IS NOT NULL
               AND sealed_sha256 IS NOT NULL)),
    CONSTRAINT no_more_outcomes_than_records CHECK (results + dead_letters <= records)) WITHOUT ROWID;
CREATE INDEX shards_by_state ON shards (job_version, state, shard);
CREATE TABLE outcomes (
    job_version VARCHAR NOT NULL, shard INTEGER NOT NULL, record_id VARCHAR NOT NULL, kind VARCHAR NOT NULL,
    attempt INTEGER NOT NULL, payload TEXT, finish_reason VARCHAR, reason VARCHAR, error TEXT, engine VARCHAR NOT NULL,
    worker VARCHAR NOT NULL, epoch INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    stored_at FLOAT NOT NULL, PRIMARY KEY (job_version, shard, record_id),
    CONSTRAINT outcome_is_result_or_dead_letter
        CHECK ((kind = 'result' AND payload IS NOT NULL AND reason IS NULL)
               OR (kind = 'dead_letter' AND payload IS NULL AND reason IS NOT NULL))) WITHOUT ROWID;
CREATE INDEX outcomes_dead_letters ON outcomes (job_version, shard, record_id) WHERE kind = 'dead_letter';
CREATE TABLE failures (
    job_version VARCHAR NOT NULL, shard INTEGER NOT NULL, record_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    reason VARCHAR NOT NULL, error TEXT NOT NULL, epoch INTEGER NOT NULL, worker VARCHAR NOT NULL, at FLOAT NOT NULL,
    PRIMARY KEY (job_version, shard, record_id, attempt)) WITHOUT ROWID;
CREATE TABLE throughput (
    job_version VARCHAR NOT NULL, bucket INTEGER NOT NULL, outcomes INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, PRIMARY KEY (job_version, bucket));
CREATE TABLE verdicts (
    job_version VARCHAR NOT NULL, check_name VARCHAR NOT NULL, content_sha256 VARCHAR NOT NULL,
    basis_sha256 VARCHAR NOT NULL, passed INTEGER NOT NULL, blocking INTEGER NOT NULL, body TEXT NOT NULL,
    at FLOAT NOT NULL, PRIMARY KEY (job_version, check_name));
CREATE TABLE publications (
    publication_id VARCHAR NOT NULL, job VARCHAR NOT NULL, kind VARCHAR NOT NULL, from_version VARCHAR,
    to_version VARCHAR NOT NULL, who VARCHAR NOT NULL, verdicts TEXT NOT NULL, at FLOAT NOT NULL,
    PRIMARY KEY (publication_id), CONSTRAINT publication_kind_is_known CHECK (kind IN ('publish', 'rollback')));
CREATE INDEX publications_by_job ON publications (job, at);
CREATE TABLE pointers (
    job VARCHAR NOT NULL, job_version VARCHAR NOT NULL, publication_id VARCHAR NOT NULL, PRIMARY KEY (job));
"""

VERSION = small_version()  # shards of 4, 4 and 2 records: one completed, one leased, one pending
ID = VERSION.id
ROWS = f"""
INSERT INTO versions VALUES ('{ID}', 'tickets', 'v1', '{VERSION.digest}', 'f', 10, 3, 5.0, 6.0, '{{"d": "/x"}}');
INSERT INTO shards VALUES
    ('{ID}', 0, 'completed', 2, NULL, NULL, 4, 3, 1, 1, 'p', 'key', 'x', 9, 'w0', 7.0),
    ('{ID}', 1, 'leased', 1, 'w1', 999999.0, 4, 1, 0, 0, 'q', NULL, NULL, NULL, NULL, NULL),
    ('{ID}', 2, 'pending', 0, NULL, NULL, 2, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO outcomes VALUES
    ('{ID}', 0, '0', 'result', 1, '{{}}', 'stop', NULL, NULL, 'e', 'w0', 2, 10, 3, 7.0),
    ('{ID}', 0, '1', 'dead_letter', 3, NULL, NULL, 'timeout', 'late', 'e', 'w0', 1, 10, 0, 7.0),
    ('{ID}', 0, '2', 'result', 1, '{{}}', 'stop', NULL, NULL, 'e', 'w0', 2, 10, 3, 7.0),
    ('{ID}', 0, 'Ü 3', 'result', 2, '{{}}', 'stop', NULL, NULL, 'e', 'w0', 2, 10, 3, 7.0),
    ('{ID}', 1, '4', 'result', 1, '{{}}', 'stop', NULL, NULL, 'e', 'w1', 1, 10, 3, 7.0);
INSERT INTO failures VALUES
    ('{ID}', 0, '1', 1, 'timeout', 'late', 1, 'w0', 6.5), ('{ID}', 1, '5', 2, 'invalid_output', 'no', 1, 'w1', 7.5);
INSERT INTO throughput VALUES ('{ID}', 0, 5, 50, 5, 12);
INSERT INTO verdicts VALUES ('{ID}', 'coverage', 'c', 'b', 1, 1, '{{}}', 8.0);
INSERT INTO publications VALUES
    ('first', 'tickets', 'publish', NULL, 'v0', 'me', '{{}}', 3.0),
    ('same moment', 'tickets', 'publish', 'v0', 'v00', 'me', '{{}}', 3.0),
    ('other job', 'letters', 'publish', NULL, 'l1', 'me', '{{}}', 2.0),
    ('back', 'tickets', 'rollback', 'v00', 'v0', 'me', '{{}}', 4.0);
INSERT INTO pointers VALUES ('tickets', 'v0', 'back'), ('letters', 'l1', 'other job');
"""


def make_old(path: Path, *, rows: bool = True) -> str:
    """A ledger as release 0.1.0 left it; returns its address."""
    with sqlite3.connect(path) as connection:
        connection.executescript("PRAGMA journal_mode=WAL;" + RELEASE_0_1_0 + (ROWS if rows else ""))
    connection.close()
    return f"sqlite:///{path}"


def content(path: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables."""
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}
    connection.close()
    return found


def test_every_row_of_release_0_1_0_is_kept(tmp_path: Path) -> None:
    """Each table has the rows it had, each with the values it had."""
    path = tmp_path / "ledger.sqlite"
    url = make_old(path)
    before = content(path)
    Ledger(url).close()
    after = content(path)
    assert before.keys() == {"versions", "shards", "outcomes", "failures", "throughput", "verdicts", "publications",
                             "pointers"}  # fmt: skip
    for name, rows in before.items():
        assert rows, name
        kept = [{key: row[key] for key in rows[0]} for row in after[name]]
        assert sorted(map(str, kept)) == sorted(map(str, rows)), name
    assert after.keys() == metadata.tables.keys() | {"alembic_version"}  # nothing set aside is left behind


def test_a_migrated_ledger_works_on(tmp_path: Path) -> None:
    """A lease of the old release is renewed and its shard completed; its zombies are fenced; history is in order."""
    clock = Clock(500_000.0)
    ledger = Ledger(make_old(tmp_path / "ledger.sqlite"), clock=clock)
    lease = Lease(job_version=ID, shard=1, epoch=1, owner="w1", records=4)
    ledger.leases.renew(lease, lease_s=60.0)
    assert ledger.outcomes.settled_ids(ID, 1) == {"4"}
    assert ledger.outcomes.failed_attempts(ID, 1) == {"5": 2}
    ledger.outcomes.put(Put(lease=lease, results=[result("5"), result("6"), result("7")]))
    ledger.leases.complete(lease, SealedFile(key="k", sha256="y", size=1, rows=4))
    with pytest.raises(Fenced):
        ledger.leases.renew(Lease(job_version=ID, shard=0, epoch=1, owner="w0", records=4), lease_s=60.0)
    assert LedgerUnderTest(ledger, clock).claim("w2").shard == 2
    moves = [move.publication_id for move in ledger.publications.history("tickets")]
    assert moves == ["back", "same moment", "first"]
    assert ledger.interventions.retry_dead_letters(ID, "timeout", who="me").records == 1
    invariants.check(ledger, ID)
    ledger.close()


def test_a_silent_worker_of_the_old_release_is_counted_as_lost(tmp_path: Path) -> None:
    """What it stored before the migration is no progress of a claim to come."""
    clock = Clock(1_000_000.0)
    ledger = Ledger(make_old(tmp_path / "ledger.sqlite"), clock=clock)
    heir = LedgerUnderTest(ledger, clock).claim("w2")
    assert (heir.shard, heir.epoch, heir.recoveries) == (1, 2, 1)
    ledger.close()


@pytest.mark.parametrize("record", ["a\x01b", "a\x00b", "\x01\x01", "\x01\x02", "y" * 2_000, "é" * 600, "y" * 1_000])
def test_odd_record_ids_of_the_old_release_stay_the_same_records(tmp_path: Path, record: str) -> None:
    """0.1.0 kept every id as it was; today some are spelled otherwise, and must not be stored a second time."""
    path = tmp_path / "ledger.sqlite"
    url = make_old(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE outcomes SET record_id = ? WHERE record_id = '4'", (record,))
        connection.execute("UPDATE failures SET record_id = ? WHERE record_id = '5'", ("5" + record,))
    connection.close()
    ledger = Ledger(url, clock=Clock(500_000.0))
    assert ledger.outcomes.settled_ids(ID, 1) == {record}
    assert ledger.outcomes.failed_attempts(ID, 1) == {"5" + record: 2}
    lease = Lease(job_version=ID, shard=1, epoch=1, owner="w1", records=4)
    assert ledger.outcomes.put(Put(lease=lease, results=[result(record)])).discarded == 1
    invariants.check(ledger, ID)
    ledger.close()


# --- several at once -----------------------------------------------------------------------------

OPENER = """
import sys
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.migrate import migrate
import alembic.command
print("ready", flush=True)
for line in sys.stdin:
    try:
        Ledger(line.strip()).close()
        print("opened", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture
def openers() -> Iterator[list[subprocess.Popen[str]]]:
    """Three processes that open the ledgers they are told to."""
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", OPENER], stdin=pipe, stdout=pipe, text=True, bufsize=1)
        for _ in range(3)
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    yield started
    for one in started:
        one.communicate(timeout=60)


def open_at_once(openers: list[subprocess.Popen[str]], url: str) -> list[str]:
    for one in openers:
        assert one.stdin is not None
        one.stdin.write(url + "\n")
    return [one.stdout.readline().strip() for one in openers if one.stdout is not None]


def test_several_processes_open_an_empty_ledger_at_once(
    openers: list[subprocess.Popen[str]], tmp_path: Path, ledger_url: str, request: pytest.FixtureRequest
) -> None:
    """One makes the tables, the others wait and find them."""
    for number in range(8):
        url = f"sqlite:///{tmp_path / f'{number}.sqlite'}"
        if not ledger_url.startswith("sqlite"):
            server: Server = request.getfixturevalue("postgresql")
            url = server.new_database()
        assert open_at_once(openers, url) == ["opened"] * 3
        ledger = Ledger(url)
        ledger.plans.register(VERSION, file_sha256="f")
        assert ledger.plans.write_plan(VERSION, ()) == 0
        ledger.close()


def test_several_processes_open_an_old_ledger_at_once(openers: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """One migrates it, once."""
    for number in range(8):
        path = tmp_path / f"{number}.sqlite"
        assert open_at_once(openers, make_old(path)) == ["opened"] * 3
        assert len(content(path)["outcomes"]) == 5


# --- what must not be touched --------------------------------------------------------------------


def test_a_ledger_of_a_newer_release_is_refused_and_unchanged(ledger_url: str) -> None:
    """The message says what was found and what to do; not a row is different afterwards."""
    ledger = Ledger(ledger_url)
    ledger.plans.register(VERSION, file_sha256="f")
    with ledger.database.write("test") as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0999'"))
    before = everything(ledger)
    with pytest.raises(VersionError, match=rf"newer release.*0999.*{HEAD}.*Nothing was changed"):
        Ledger(ledger_url)
    assert everything(ledger) == before
    ledger.close()


def everything(ledger: Ledger) -> str:
    with ledger.database.read() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        rows = {name: [list(row) for row in connection.execute(sa.text(f"SELECT * FROM {name}"))] for name in names}
    return json.dumps(rows, default=str)


@pytest.fixture
def worker_url(postgresql: Server) -> Iterator[tuple[str, str]]:
    """The addresses of one database: for its owner, and for a role that may not create anything."""
    url = postgresql.new_database()
    role = "worker_" + url.rpartition("/")[2]
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")  # type: ignore[call-overload]
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        connection.execute(  # type: ignore[call-overload]
            f"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}"
        )
        yield url, url.replace("//postgres@", f"//{role}@")
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[call-overload]


def test_workers_need_no_right_to_change_tables(worker_url: tuple[str, str]) -> None:
    """A ledger that is up to date is opened, and worked on, by a role that can only read and write rows."""
    owner, worker = worker_url
    with pytest.raises(StoreError, match="permission denied"):
        Ledger(worker)  # somebody has to make the tables first
    planner = LedgerUnderTest(Ledger(owner), Clock())
    ledger = Ledger(worker)
    under = LedgerUnderTest(ledger, Clock())  # registers and plans again, which changes nothing
    lease = under.claim()
    under.answer_all(lease)
    under.complete(lease)
    assert under.states() == ["completed", "pending", "pending"]
    for one in (planner.ledger, ledger):
        one.close()
