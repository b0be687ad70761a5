"""Dagster runs from the command line: `python -m batch_assets.assets.launch VERSION`.

The module is a program, and the functions that start it. A run gets a process of its own because
Dagster and the engine take over signals and write to the terminal, and because the caller should
outlive both. The program says nothing on stdout but, when the run has failed, one paragraph why;
Dagster's log goes to stderr. Exit status 0 when the run succeeded, else 1; 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from batch_assets.assets.instance import dagster_environment
from batch_assets.core.verdicts import Verdict, refusals
from batch_assets.errors import BatchAssetsError, GateError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.publish import current_verdicts, verdicts_that_count
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion


class RunFailed(BatchAssetsError):
    """A Dagster run ended without doing what it was started for; the message is its reason."""


def launch_checks(deployment: Deployment, registered: RegisteredVersion) -> list[Verdict]:
    """Run all checks of a version through Dagster; returns the verdicts, good or bad.

    Raises RunFailed when a check could not be made.
    """
    problem = _start(deployment, registered, "--checks")
    verdicts = current_verdicts(deployment, registered.job_version)
    required = deployment.job(registered.job).required_checks
    if problem is not None and not {*required} <= {verdict.check for verdict in verdicts}:
        raise RunFailed(problem)
    return verdicts


def launch_publish(deployment: Deployment, registered: RegisteredVersion) -> None:
    """Materialize `published` at this version. Raises GateError when its checks do not allow it."""
    problem = _start(deployment, registered, "--publish")
    if problem is not None:
        _raise_refusal(deployment, registered, problem)


def launch_gate(deployment: Deployment, registered: RegisteredVersion) -> None:
    """Check, then publish, in one run if the version is the newest. Raises GateError when refused."""
    problem = _start(deployment, registered, "--gate")
    if problem is not None:
        _raise_refusal(deployment, registered, problem)


def _raise_refusal(deployment: Deployment, registered: RegisteredVersion, problem: str) -> None:
    job = deployment.job(registered.job)
    reasons = refusals(verdicts_that_count(deployment, job, registered.job_version), job.required_checks)
    if not reasons:
        raise RunFailed(problem)
    shown = deployment.ledger.publications.current(registered.job)
    raise GateError(
        f"{registered.job_version} was not published; {registered.job} still shows {shown or 'nothing'}. "
        f"Reasons: {'; '.join(reasons)}.",
        reasons=reasons,
    )


def _start(deployment: Deployment, registered: RegisteredVersion, *arguments: str) -> str | None:
    """Run the program to its end; returns why it failed, or None."""
    log = deployment.settings.root / "logs" / f"{registered.job_version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "batch_assets.assets.launch", registered.job_version, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=dagster_environment(deployment.settings),
            check=False,
        )
    if done.returncode == 0:
        return None
    return done.stdout.decode().strip() or f"The run ended with status {done.returncode}; its log is {log}."


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    options = _parser().parse_args(arguments)
    settings = Settings()
    os.environ.update(dagster_environment(settings))
    # Only now: Dagster takes seconds to import, and callers of the functions above do without it.
    from batch_assets.assets.requests import execute_request

    try:
        on_launcher = _stop_at_end_of_stdin if options.tie_to_stdin else None
        problem = execute_request(settings, options.version, options.what, options.shards, on_launcher)
    except BatchAssetsError as error:
        print(error, flush=True)
        return error.exit_status
    if problem is not None:
        print(problem, flush=True)
    return 0 if problem is None else 1


def _stop_at_end_of_stdin(stop: Callable[[], None]) -> None:
    def watch() -> None:
        # Not sys.stdin: its lock would be held at interpreter exit.
        while os.read(0, 4096):
            pass
        stop()

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="batch_assets.assets.launch", description="Run a job version through Dagster."
    )
    parser.add_argument("version", help="a job version, or a job for its newest one")
    parser.add_argument("--shards", type=_shards, metavar="A-B", help="only these shards; both ends included")
    parser.add_argument("--tie-to-stdin", action="store_true", help="drain and end when stdin is closed")
    what = parser.add_mutually_exclusive_group()
    for name in ("checks", "publish", "gate"):
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name)
    parser.set_defaults(what="shards")
    return parser


def _shards(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


if __name__ == "__main__":
    sys.exit(main())
