"""Real worker processes: `batch-assets work VERSION`, as any scheduler would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from assets_tests.homes import Home
from batch_assets.failpoints import VARIABLE

_CODE = "import sys; from batch_assets.cli.main import main; sys.argv[0] = 'batch-assets'; main()"


def environment(home: Home, *, failpoints: str = "") -> dict[str, str]:
    """The variables of a process that belongs to this home."""
    settings = home.deployment.settings
    ledger = {} if settings.ledger is None else {"BATCH_ASSETS_LEDGER": settings.ledger.get_secret_value()}
    return {
        **os.environ,
        **ledger,
        "BATCH_ASSETS_HOME": str(settings.home),
        "BATCH_ASSETS_JOBS": str(home.jobs),
        VARIABLE: failpoints,
    }


def start_worker(
    home: Home, job_version: str, *, failpoints: str = "", log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start one; what it says goes to `log`."""
    with (log or Path(os.devnull)).open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-c", _CODE, "work", job_version],
            env=environment(home, failpoints=failpoints),
            stdout=sink,
            stderr=sink,
        )


def run_until_done(home: Home, job_version: str, *, lives_max: int, failpoints: str = "") -> int:
    """Start workers one after the other, as a scheduler that retries; returns how many it took."""
    for life in range(1, lives_max + 1):
        status = start_worker(home, job_version, failpoints=failpoints).wait(120)
        if status == 0:
            return life
        assert status == -9, f"life {life} ended with status {status}"
    raise AssertionError(f"not done after {lives_max} lives")


def batch_assets(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run any command to its end."""
    return subprocess.run(
        [sys.executable, "-c", _CODE, *arguments], env=environment(home), capture_output=True, text=True, timeout=120
    )
