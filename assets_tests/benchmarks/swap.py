"""Does the time of a swap depend on the number of rows? Two versions of each size, and swaps between them.

    python -m assets_tests.benchmarks.swap --rows 1000 --rows 1000000 --swaps 20

The sealed files are written by DuckDB, and everything else is the real thing: the ledger, `rollback`,
the catalog, the JSON pointer. The number of files is the same for each size. Prints the median time of
a swap by size and the ratio to the first one; ratios are what counts, the machine decides the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from pathlib import Path

import duckdb

from assets_tests.homes import Home, temporary_home
from assets_tests.ledgers import Clock, LedgerUnderTest, small_version
from batch_assets.operations.publish import rollback
from batch_assets.storage.publications import Publication
from batch_assets.storage.sealed import SealedFile

FILES = 4
JOB = "tickets"


def main() -> None:
    """Measure each size in a home of its own."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, action="append", help="size of a version; give it several times")
    arguments.add_argument("--swaps", type=int, default=20)
    given = arguments.parse_args()
    first: float | None = None
    print(f"{'rows':>12}{'MB':>8}{'median ms':>11}{'ratio':>8}")
    for rows in given.rows or [1_000, 1_000_000]:
        with tempfile.TemporaryDirectory() as folder, temporary_home(Path(folder)) as home:
            versions = [make(home, rows, prompt) for prompt in ("a", "b")]
            size = sum(one.size for one in home.deployment.objects.list("results/")) / 1e6
            median = statistics.median(swap(home, versions[number % 2]) for number in range(given.swaps))
        first = first or median
        print(f"{rows:>12,}{size:>8.1f}{1000 * median:>11.1f}{median / first:>8.2f}", flush=True)


def make(home: Home, rows: int, prompt: str) -> str:
    """A completed version that was published, with so many rows in `FILES` sealed files."""
    version = small_version(records=rows, shard_size=-(-rows // FILES), prompt=prompt)
    under = LedgerUnderTest(home.deployment.ledger, Clock(), version)
    while (lease := under.try_claim()) is not None:
        with home.deployment.objects.scratch() as scratch:
            file = seal(home, version.id, lease.shard, lease.records, scratch)
        with home.deployment.ledger.database.write("benchmark") as connection:
            for statement in _ANSWER_ALL:
                connection.exec_driver_sql(statement, (version.id, lease.shard, lease.records))
        under.ledger.leases.complete(lease, file)
    publications = home.deployment.ledger.publications
    publications.move(
        Publication(
            publication_id=version.id,
            job=JOB,
            kind="publish",
            from_version=publications.current(JOB),
            to_version=version.id,
            who="benchmark",
            verdicts={},
        )
    )
    return version.id


def seal(home: Home, version: str, shard: int, rows: int, scratch: Path) -> SealedFile:
    path, key = scratch / f"{version}-{shard}.parquet", f"results/{JOB}/{version}/shard-{shard:06d}.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT n AS id, 'category ' || n % 7 AS category, md5(n::VARCHAR) || md5((n + 1)::VARCHAR) AS summary, "
            f"'{version}' AS _job_version FROM range({shard * rows}, {(shard + 1) * rows}) AS t(n)) TO '{path}'"
        ).fetchall()
    home.deployment.objects.put_file_if_absent(key, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return SealedFile(key=key, sha256=digest, size=path.stat().st_size, rows=rows)


# Rows as `put` leaves them, without sending each of them: (version, shard, records).
_ANSWER_ALL = (
    "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?3) "
    "INSERT INTO outcomes (job_version, shard, record_id, kind, attempt, payload, finish_reason, engine, worker, epoch, "
    "prompt_tokens, output_tokens, stored_at) "
    "SELECT ?1, ?2, printf('%09d', n), 'result', 1, '{}', 'stop', 'e', 'w', 1, 0, 0, 0.0 FROM numbers",
    "UPDATE shards SET results = ?3 WHERE job_version = ?1 AND shard = ?2",
)


def swap(home: Home, to: str) -> float:
    started = time.perf_counter()
    rollback(home.deployment, JOB, to)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
