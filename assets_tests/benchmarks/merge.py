"""Time and peak memory of merging changes with a large base, by the number of rows.

    python -m assets_tests.benchmarks.merge --rows 1000000 5000000

One row in a hundred is changed and one in a thousand removed. The base is made by DuckDB in the columns
of a sealed file; each merge runs in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import tempfile
import time
from pathlib import Path

import duckdb

from assets_tests.factories import make_job
from assets_tests.homes import Home, temporary_home
from batch_assets.operations.check import check
from batch_assets.operations.merge import merge
from batch_assets.operations.pin_changes import pin_changes
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import publish
from batch_assets.operations.whole import published_files
from batch_assets.operations.work import work
from batch_assets.storage.file_sets import DataFile, FileSet, Manifest
from batch_assets.storage.plans import RegisteredVersion

FILES = 20
_ID = "printf('R-%09d', n)"


def main() -> None:
    """One line for each number of rows."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    print(f"{'rows':>12}{'changed':>10}{'s':>8}{'rows/s':>10}{'peak MB':>10}{'files':>7}")
    for rows in arguments.parse_args().rows:
        with tempfile.TemporaryDirectory() as folder:
            seconds, peak, files = measured(Path(folder), rows)
        print(
            f"{rows:>12,}{rows // 100:>10,}{seconds:>8.1f}{rows / seconds:>10,.0f}{peak:>10,.0f}{files:>7}", flush=True
        )


def measured(folder: Path, rows: int) -> tuple[float, float, int]:
    """Seconds, MB and files of one merge."""
    with temporary_home(folder) as home:
        make_job(home.jobs, records=20, shard_size=5000)
        base, _ = home.worked()
        check(home.deployment, base)
        publish(home.deployment, base)
        enlarge(home, base, rows)
        delta = changed(home, folder, rows)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, (folder, delta))


def run(folder: Path, job_version: str) -> tuple[float, float, int]:
    with temporary_home(folder) as home:
        started = time.monotonic()
        manifest = merge(home.deployment, home.deployment.ledger.plans.get(job_version))
        seconds = time.monotonic() - started
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) / 1024, len(manifest.results)


def enlarge(home: Home, base: RegisteredVersion, rows: int) -> None:
    """Give the published version a set of many rows, shaped like its own."""
    objects, files = home.deployment.objects, []
    sealed = objects.uri(next(published_files(home.deployment, base.job_version)).key)
    words = "'order ' || (n * 7919 % 100003) || ' is about ' || md5(n::VARCHAR) || ' and more that was said of it'"
    for part in range(FILES):
        with objects.scratch() as scratch, duckdb.connect() as connection:
            path = scratch / "part.parquet"
            connection.execute(
                f"COPY (SELECT template.* REPLACE ({_ID} AS record_id, {words} AS summary) FROM range({rows * part // FILES},"
                f" {rows * (part + 1) // FILES}) AS numbers(n), (SELECT * FROM '{sealed}' LIMIT 1) AS template)"
                f" TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
            )
            key = f"merged/tiny/{base.job_version}/made/whole-{part:05d}.parquet"
            objects.put_file_if_absent(key, path)
            size, count = path.stat().st_size, rows * (part + 1) // FILES - rows * part // FILES
            files.append(DataFile(key=key, sha256=objects.sha256(key), bytes=size, rows=count))
    manifest = Manifest(job_version=base.job_version, base_version="", results=files, dead_letters=[])
    data, key = manifest.dump(), f"merged/tiny/{base.job_version}/made/manifest.json"
    objects.put_if_absent(key, data)
    home.deployment.ledger.file_sets.record(
        FileSet(
            job_version=base.job_version,
            job="tiny",
            content_sha256="made",
            manifest_key=key,
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            rows=rows,
            dead_letters=0,
            bytes=sum(file.bytes for file in files),
        ),
        reopened=0,
    )


def changed(home: Home, folder: Path, rows: int) -> str:
    """Pin and answer one record in a hundred."""
    columns = f"{_ID} AS record_id, 'Subject' AS subject, 'A body' AS body, 'public' AS record_class, 'team-1' AS acl"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT {columns} FROM range(0, {rows}, 100) AS t(n)) TO '{folder}/changes.parquet'")
        connection.execute(
            f"COPY (SELECT {_ID} AS record_id FROM range(7, {rows}, 1000) AS t(n)) TO '{folder}/gone.parquet'"
        )
    job = home.deployment.job("tiny")
    pinned = pin_changes(home.deployment, job, folder / "changes.parquet", removed=folder / "gone.parquet")
    plan(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
    work(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
    return pinned.job_version


if __name__ == "__main__":
    main()
