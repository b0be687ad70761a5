"""Records of 200 kB: what a worker keeps in memory is bounded by its window, never by the number of records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.factories import make_job, record_id
from assets_tests.homes import Home
from assets_tests.workers import environment

RECORDS = 5000
BODY_BYTES = 200_000
CEILING_MIB = 900  # a worker without any record takes about 250

# The kernel's own note of the largest size; `ru_maxrss` would begin with the size of whoever started the process.
_MEASURED = """
import re, sys
from pathlib import Path
from batch_assets.cli.main import main
sys.argv = ["batch-assets", "work", sys.argv[1]]
try:
    main()
finally:
    peak_kib = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
    print("MiB", peak_kib // 1024, file=sys.stderr)
"""


@pytest.mark.alone
@pytest.mark.case("C59")
def test_memory_does_not_grow_with_large_records(home: Home) -> None:
    """A gigabyte of records goes through a worker that never holds more than a few hundred megabytes."""
    job = make_job(
        home.jobs, records=1, shard_size=1000, script={}, decoding={"input_tokens_max": 60_000},
        engine={"sequences_max": 8},
    )  # fmt: skip
    write_large_records(job / "records.parquet")
    registered = home.pinned()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, registered.job_version],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stderr.rpartition("MiB ")[2])
    assert peak < CEILING_MIB
    assert home.status(registered)["results"] == RECORDS


def write_large_records(path: Path) -> None:
    schema = pa.schema([(name, pa.string()) for name in ("record_id", "subject", "body", "record_class", "acl")])
    noise = os.urandom(500).hex()  # a little entropy; the file stays small, the text does not
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, RECORDS, 100):
            rows = [
                {
                    "record_id": record_id(number),
                    "subject": f"Subject {number}",
                    "body": (noise + str(number)) * (BODY_BYTES // 1000),
                    "record_class": "public",
                    "acl": "team",
                }
                for number in range(first, first + 100)
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
