"""Running a version through Dagster in a process of its own, and showing how far it is.

The run is a child process: Dagster and the engine write to a log file, and this process only reads
the ledger. The child holds our end of a pipe; when we go away, it drains and ends.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from batch_assets.cli import render
from batch_assets.errors import StoreError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.status import status
from batch_assets.storage.plans import RegisteredVersion

POLL_S = 1.0
PLAIN_LINE_EVERY_S = 15.0  # without a terminal: a line now and then instead of a bar
STOP_S = 60.0  # a draining worker stores what is in flight


def run_with_progress(deployment: Deployment, registered: RegisteredVersion) -> str | None:
    """Start the run, show a bar with rate and ETA until it ends; returns why it failed, or None."""
    log = deployment.settings.root / "logs" / f"{registered.job_version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    render.say(f"Starting the engine; its log is {log}")
    with log.open("ab") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "batch_assets.assets.launch", registered.job_version, "--tie-to-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # nothing, or one paragraph that says why the run failed
            stderr=sink,
            start_new_session=True,  # Ctrl-C is for us; we pass it on by closing the pipe
        )
        try:
            for line in _lines(deployment, registered, child):
                render.say(line)
        except KeyboardInterrupt:
            render.say("Stopping: what is in the engine is being stored, the rest is handed back.")
        finally:
            said = _stop(child)
    if child.returncode == 0:
        return None
    return said or f"The run ended with status {child.returncode}; the reason is in {log}."


def _stop(child: subprocess.Popen[bytes]) -> str:
    """Let go of the child; returns what it had to say."""
    try:
        said, _ = child.communicate(timeout=STOP_S)  # closes its stdin, at which it drains
    except subprocess.TimeoutExpired:
        child.kill()
        said, _ = child.communicate()
    return said.decode(errors="replace").strip()


def _lines(deployment: Deployment, registered: RegisteredVersion, child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Lines to print while the child runs: none on a terminal, where the bar says it all."""
    if not render.console.is_terminal:
        yield from _plain(deployment, registered, child)
        return
    with _bar(registered.records) as advance:
        while child.poll() is None:
            advance(*_state(deployment, registered))
            time.sleep(POLL_S)
        advance(*_state(deployment, registered))


def _plain(deployment: Deployment, registered: RegisteredVersion, child: subprocess.Popen[bytes]) -> Iterator[str]:
    said, due = "", 0.0
    while child.poll() is None:
        line = _line(registered, *_state(deployment, registered))
        if time.monotonic() >= due and line != said:
            yield line
            said, due = line, time.monotonic() + PLAIN_LINE_EVERY_S
        time.sleep(POLL_S)
    yield _line(registered, *_state(deployment, registered))


def _line(registered: RegisteredVersion, done: int | None, text: str) -> str:
    return text if done is None else f"{done:,} of {registered.records:,} records, {text}"


def _state(deployment: Deployment, registered: RegisteredVersion) -> tuple[int | None, str]:
    try:
        state = status(deployment, registered)
    except StoreError:
        return None, "the ledger does not answer; the workers wait for it"
    done = state["results"] + state["dead_letters"]
    if not state["workers"] and state["pending"]:
        return done, "starting the engine"
    if not state["records_per_s"]:
        return done, "waiting for the first answers"
    rate = f"{render.count(state['records_per_s'], 2)} records/s"
    return done, f"{rate}, {render.duration(state['eta_s'])} left" if state["pending"] else rate


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int | None, str], None]]:
    columns = (
        SpinnerColumn(),
        TextColumn("records"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=render.console) as progress:
        task = progress.add_task("records", total=total, text="starting the engine")

        def advance(done: int | None, text: str) -> None:
            progress.update(task, completed=done, text=text)

        yield advance
