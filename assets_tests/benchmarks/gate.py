"""Time and peak memory of every check that reads all rows, on data made by DuckDB.

    python -m assets_tests.benchmarks.gate --rows 1000000

Each check runs in a process of its own, so that its peak is its own. Prints seconds, seconds of
processor time (of a machine that others use too) and VmHWM.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from assets_tests.evidence import RESULTS, Case
from batch_assets.validation.access_labels import access_labels
from batch_assets.validation.coverage import coverage
from batch_assets.validation.dead_letters import dead_letters
from batch_assets.validation.drift import drift
from batch_assets.validation.one_recipe import one_recipe
from batch_assets.validation.schema import schema

CHECKS = {one.__name__: one for one in (coverage, schema, drift, dead_letters, access_labels, one_recipe)}
_SHARD_ROWS = 250_000
_ANSWERED = "hash(n) % 1000 <> 7"
_THAI = "CASE WHEN n % 1000 = 0 THEN 'สวัสดี ' ELSE '' END || "


def main() -> None:
    """Make the data once, then run each check by itself."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--folder", type=Path, help="where the data is made; a temporary folder by default")
    arguments.add_argument("--check", choices=CHECKS, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.check:
        print(json.dumps(measure(given.check, given.rows, given.folder)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        started = time.monotonic()
        make(Path(folder), given.rows)
        print(f"{given.rows:,} rows made in {time.monotonic() - started:.0f} s")
        print(f"{'check':<15}{'s':>8}{'cpu s':>8}{'peak MB':>10}  verdict")
        for name in CHECKS:
            command = [
                sys.executable,
                "-m",
                "assets_tests.benchmarks.gate",
                "--rows",
                str(given.rows),
                "--folder",
                folder,
            ]
            done = subprocess.run([*command, "--check", name], capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            print(
                f"{name:<15}{found['seconds']:>8.1f}{found['cpu']:>8.1f}{found['peak_mb']:>10,.0f}  {found['summary']}",
                flush=True,
            )


def case(folder: Path, rows: int) -> Case:
    return Case(folder, rows, shards=-(-rows // _SHARD_ROWS))


def make(folder: Path, rows: int) -> None:
    """A clean version, one record in a thousand a dead letter, and a published one that differs in 3 % of answers."""
    version = case(folder, rows)
    body = "'This is ticket ' || n || ' about order ' || (n * 7919 % 100003) || repeat(' and more of it', 20)"
    version.snapshot(body=_THAI + body).results(_ANSWERED)
    version.baseline(_ANSWERED, category=_churned())


def _churned() -> str:
    moved = RESULTS["category"].replace("hash(n)", "hash(n + 5)")
    return f"CASE WHEN hash(n + 9) % 100 < 3 THEN {moved} ELSE {RESULTS['category']} END"


def measure(name: str, rows: int, folder: Path) -> dict[str, object]:
    version = case(folder, rows)
    for table in ("snapshot", "baseline"):
        version.connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{folder / table}.parquet'")
    version.views().dead_letters("hash(substr(id, 3)::BIGINT) % 1000 = 7")
    evidence = version.evidence()
    started, used = time.monotonic(), time.process_time()
    verdict = CHECKS[name](evidence)
    seconds, cpu = time.monotonic() - started, time.process_time() - used
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"seconds": seconds, "cpu": cpu, "peak_mb": int(peak.split()[1]) / 1024, "summary": verdict.summary[:90]}


if __name__ == "__main__":
    main()
