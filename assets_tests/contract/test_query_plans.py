"""The hot statements find their rows by index, whatever the size of the ledger.

The plans are what the databases say about the very statements that the ledger sends. A statement that
scans or sorts 100,000 shards holds SQLite's write lock while it does so, and every worker waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from assets_tests.ledgers import Clock, LedgerUnderTest, result
from batch_assets.core.leases import Lease
from batch_assets.storage.ledger import Ledger

SHARDS = 100_000
LEASED, PENDING = 90_000, 90_050  # the first of each; completed before

BY_STATE = "USING INDEX shards_by_state (job_version=? AND state=?"
RANGE = "AND shard>? AND shard<?)"
BY_KEY = "SEARCH shards USING PRIMARY KEY (job_version=? AND shard=?)"
ONE_BY_STATE = ["Update on shards", "Index Scan using shards_by_state on shards"]

# What is asked -> the plans of its statements on shards, in order.
SQLITE: dict[str, list[list[str]]] = {
    "claim": [
        [f"SEARCH shards {BY_STATE})"],  # its own lease, when the claim is sent again
        [BY_KEY, "LIST SUBQUERY 1", f"SEARCH shards {BY_STATE} {RANGE}"],  # shards of silent owners
        [BY_KEY, "SCALAR SUBQUERY 1", f"SEARCH shards {BY_STATE} {RANGE}"],  # the first pending one
    ],
    "renew": [[BY_KEY]],
    "put": [[BY_KEY], [BY_KEY]],  # the fence, the counters
    "outstanding": [[f"SEARCH shards {BY_STATE} {RANGE}"]],
    "release": [[BY_KEY]],
}
POSTGRESQL: dict[str, list[list[str]]] = {
    "claim": [
        ["Index Scan using shards_by_state on shards"],
        [
            "Update on shards",
            "Nested Loop",
            "HashAggregate",
            "Subquery Scan",
            "LockRows",
            "Index Scan using shards_by_state on shards",
            "Index Scan using shards_by_state on shards",
        ],
        [
            "Update on shards",
            "Limit",
            "LockRows",
            "Index Scan using shards_by_state on shards",
            "Index Scan using shards_by_state on shards",
        ],
    ],
    "renew": [ONE_BY_STATE],
    "put": [
        ["LockRows", "Index Scan using shards_pkey on shards"],
        ["Update on shards", "Index Scan using shards_pkey on shards"],
    ],
    "outstanding": [["Aggregate", "Index Only Scan using shards_by_state on shards"]],
    "release": [ONE_BY_STATE],
}


def test_hot_statements_use_their_index(ledger_url: str) -> None:
    """At 100,000 shards, and beside other versions: no scan of the table, no sort."""
    clock = Clock()
    under = LedgerUnderTest(Ledger(ledger_url, clock=clock), clock)
    fill(under)
    found = dict(asked(under))
    under.ledger.close()
    expected = SQLITE if ledger_url.startswith("sqlite") else POSTGRESQL
    for name, plans in expected.items():
        assert found[name] == plans, f"{name} is done by {found[name]}"
    assert found.keys() == expected.keys()


def asked(under: LedgerUnderTest) -> Iterator[tuple[str, list[list[str]]]]:
    """Asks what workers ask all the time; gives the plans of what was sent for it."""
    ledger, version = under.ledger, under.version.id
    leases: list[Lease] = []

    def claim() -> None:
        lease = ledger.leases.claim(version, owner="w2", lease_s=600.0, wanted=range(SHARDS), claim_id="c")
        assert lease is not None
        assert lease.shard == LEASED  # its owner is silent: taken back, and the first that is pending
        leases.append(lease)

    calls = {
        "claim": claim,
        "renew": lambda: ledger.leases.renew(leases[0], lease_s=600.0),
        "put": lambda: under.put(leases[0], result("0")),
        "outstanding": lambda: ledger.leases.outstanding(version, range(SHARDS)),
        "release": lambda: ledger.leases.release(leases[0]),
    }
    for name, call in calls.items():
        with sent(ledger) as statements:
            call()
        yield name, [plan(ledger, *one) for one in statements if re.search(r"(FROM|UPDATE) shards\b", one[0])]


@contextmanager
def sent(ledger: Ledger) -> Iterator[list[tuple[str, Any]]]:
    """Collects the statements that are sent."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_other: Any) -> None:
        statements.append((statement, parameters))

    with ledger.database.write("test") as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


def plan(ledger: Ledger, statement: str, parameters: Any) -> list[str]:
    """The steps of a plan, without costs, conditions and the names that differ between releases."""
    with ledger.database.read() as connection:
        if connection.dialect.name == "sqlite":
            lines = [str(row[-1]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            return [line.replace("USING COVERING INDEX", "USING INDEX") for line in lines]
        rows = connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) {statement}", parameters)
        steps = [str(row[0]).strip().removeprefix("->").strip() for row in rows]
    nodes = [step for step in steps if ":" not in step and not step.startswith("InitPlan")]
    return [re.sub(r' shards_\d+$| on "ANY_subquery"$', "", node) for node in nodes]


def fill(under: LedgerUnderTest) -> None:
    """Nine in ten completed, some leased by silent owners, the rest pending; four more versions of the same kind."""
    more = f"SELECT n + 1 FROM numbers WHERE n + 1 < {SHARDS}"
    numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL {more}) "
    leased = f"n BETWEEN {LEASED} AND {PENDING - 1}"
    with under.ledger.database.write("test") as connection:
        on = " ON shards" if under.ledger.database.is_postgresql else ""
        connection.exec_driver_sql(f"DROP TRIGGER shards_begin_pending{on}")  # the rows are made, not lived
        connection.exec_driver_sql("DELETE FROM shards")
        for version in (under.version.id, "a", "b", "y", "z"):
            connection.exec_driver_sql(
                "INSERT INTO shards (job_version, shard, state, epoch, owner, lease_expires_at, records, results, "
                f"sealed_key, sealed_sha256) {numbers}"
                f"SELECT '{version}', n, CASE WHEN n < {LEASED} THEN 'completed' WHEN {leased} THEN 'leased' "
                f"ELSE 'pending' END, 1, CASE WHEN {leased} THEN 'w' END, CASE WHEN {leased} THEN 1.0 END, 100, "
                f"CASE WHEN n < {LEASED} THEN 100 ELSE 0 END, CASE WHEN n < {LEASED} THEN 'k' END, "
                f"CASE WHEN n < {LEASED} THEN 'x' END FROM numbers"
            )
    with under.ledger.database.autocommit() as connection:
        is_postgresql = under.ledger.database.is_postgresql
        connection.exec_driver_sql("VACUUM ANALYZE" if is_postgresql else "ANALYZE")
