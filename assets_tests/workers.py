"""Real processes of the command line, each with its own pid, signals and connections.

`start_worker` and `start_command` fork them from a server that has imported everything already, which
saves the second or two that Python takes to import; `batch_assets` starts one from nothing, as people do.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from assets_tests.homes import Home
from batch_assets import failpoints as armed

CODE = "import sys; from batch_assets.cli.main import main; sys.argv[0] = 'batch-assets'; main()"

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["batch_assets.cli.main", "batch_assets.assets.launch"])


def environment(home: Home, *, failpoints: str = "") -> dict[str, str]:
    """The variables of a process that belongs to this home."""
    settings = home.deployment.settings
    ledger = {} if settings.ledger is None else {"BATCH_ASSETS_LEDGER": settings.ledger.get_secret_value()}
    return {
        **os.environ,
        **ledger,
        "BATCH_ASSETS_HOME": str(settings.home),
        "BATCH_ASSETS_JOBS": str(home.jobs),
        armed.VARIABLE: failpoints,
    }


class Command:
    """A process of the command line; the same questions and orders as for a subprocess."""

    def __init__(self, home: Home, *arguments: str, failpoints: str = "", log: Path | None = None) -> None:
        self.log = log or home.jobs.parent / "commands.log"
        self._process: ForkServerProcess = _forks.Process(
            target=_run, args=(arguments, environment(home, failpoints=failpoints), str(self.log))
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        self._process.join(0)
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("batch-assets", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()


def _run(arguments: tuple[str, ...], variables: dict[str, str], log: str) -> None:
    """In the new process: become that command."""
    from batch_assets.cli.main import main

    os.environ.clear()
    os.environ.update(variables)
    armed.arm(variables[armed.VARIABLE])
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.argv = ["batch-assets", *arguments]
    main()


def start_worker(home: Home, job_version: str, *, failpoints: str = "", log: Path | None = None) -> Command:
    """Start a worker; what it says goes to `log`."""
    return Command(home, "work", job_version, failpoints=failpoints, log=log)


def run_until_done(home: Home, job_version: str, *, lives_max: int, failpoints: str = "") -> int:
    """Start workers one after the other, as a scheduler that retries; returns how many it took."""
    for life in range(1, lives_max + 1):
        status = start_worker(home, job_version, failpoints=failpoints).wait(120)
        if status == 0:
            return life
        assert status == -9, f"life {life} ended with status {status}"
    raise AssertionError(f"not done after {lives_max} lives")


def batch_assets(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run any command to its end, from nothing."""
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments], env=environment(home), capture_output=True, text=True, timeout=120
    )
