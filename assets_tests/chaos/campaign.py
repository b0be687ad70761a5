"""The fault campaign: `python -m assets_tests.chaos.campaign --seed 7 --runs 30`, or `make chaos`.

Each seed is a history (`history.py`). A failure prints the one command that plays it again, and keeps the
folder of the run. The exit status is 1 when any history has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import batch_assets
from assets_tests.chaos import checks, faults
from assets_tests.chaos.history import DIALECTS, KINDS, History, draw, places
from assets_tests.chaos.nursery import Nursery
from assets_tests.chaos.planted import BUGS
from assets_tests.chaos.run import Run, Stuck
from assets_tests.postgresql import Server, find_binaries, running_server
from assets_tests.proxy import proxy_to
from batch_assets.storage.tables import shards

SLOTS = 4  # histories at once; workers mostly wait


@dataclass(kw_only=True)
class Verdict:
    """What came of one history."""

    seed: int
    dialect: str
    kinds: list[str]
    planned: list[str]
    fired: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: str = ""
    seconds: float = 0.0
    workers: int = 0
    records: int = 0
    requests_in_vain: int = 0
    polls: int = 0
    command: str = ""  # plays it again

    def __post_init__(self) -> None:
        self.command = f"make chaos SEED={self.seed} RUNS=1 LEDGER={self.dialect}"


def dialects_of(ledger: str, seed: int) -> str:
    """Over both databases, odd seeds go to the one and even seeds to the other."""
    return DIALECTS[seed % 2] if ledger == "both" else ledger


def play(history: History, folder: Path, nursery: Nursery, server: Server | None, plant: str | None) -> Verdict:
    """One history from beginning to end; its folder is kept when something is wrong."""
    verdict = Verdict(
        seed=history.seed,
        dialect=history.dialect,
        kinds=history.kinds(),
        planned=[str(fault) for fault in history.faults],
        folder=str(folder),
        records=history.shape.records,
    )
    with ExitStack() as stack:
        if history.has("disk_full"):
            stack.enter_context(faults.small_disk(folder / "home"))
        proxy = stack.enter_context(proxy_to(server.port)) if server is not None else None
        run = Run(history, folder, nursery, server, faults.carry_out, plant=plant, proxy=proxy)
        with run.opened():
            try:
                run.play()
            except Stuck as stuck:
                verdict.problems.append(f"stuck: {stuck}")
            finished = checks.Checks(run)
            try:
                verdict.problems += finished.all()
                verdict.requests_in_vain = finished.requests_in_vain
            except Exception:
                verdict.problems.append(traceback.format_exc())
            verdict.fired, verdict.notes = [str(fault) for fault in run.fired], run.notes
            verdict.seconds, verdict.workers, verdict.polls = run.seconds, len(run.lives), run.polls
            if verdict.problems:
                _keep_evidence(run, finished, verdict)
    if not verdict.problems:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _keep_evidence(run: Run, finished: checks.Checks, verdict: Verdict) -> None:
    """What a person wants to read, from the database and from a disk that is about to go."""
    with contextlib.suppress(Exception), (run.folder / "evidence.txt").open("w") as file:
        with run.ledger.database.read() as connection:
            rows = connection.execute(sa.select(shards).order_by(shards.c.shard)).all()
        parts: dict[str, Sequence[Any]] = {
            "problems": verdict.problems,
            "history": [run.history],
            "fired": verdict.fired,
            "workers": run.lives,
            "shards": rows,
            "failed attempts": finished.failures,
            "what the database has seen": finished.log,
        }
        for name, lines in parts.items():
            file.write(f"\n=== {name}\n" + "".join(f"{line}\n" for line in lines))
    if os.path.ismount(run.home):
        shutil.copytree(run.home, run.folder / "home-kept", dirs_exist_ok=True)


# --- many histories ----------------------------------------------------------------------------------


def _slot(todo: Any, done: Any, only: tuple[str, ...], plant: str | None) -> None:
    """One of the processes that play histories, with a nursery and a server of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and disks are put away on every way out
    with ExitStack() as stack:
        nursery = stack.enter_context(Nursery())  # before any thread
        server: Server | None = None
        names = places(Path(batch_assets.__file__).parent)
        while (next_one := todo.get()) is not None:
            seed, dialect = next_one
            folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-{dialect}-"))
            history = draw(seed, dialect, names, only=only)
            try:
                if dialect == "postgresql" and server is None:
                    server = stack.enter_context(running_server())
                used = server if dialect == "postgresql" else None
                verdict = play(history, folder, nursery, used, plant)
            except Exception:
                verdict = Verdict(
                    seed=seed, dialect=dialect, kinds=[], planned=list(map(str, history.faults)), folder=str(folder)
                )
                verdict.problems.append(traceback.format_exc())
            done.put(verdict)


def campaign(
    seeds: Sequence[int], ledger: str, *, only: tuple[str, ...] = (), plant: str | None = None, slots: int = SLOTS
) -> Iterator[Verdict]:
    """Play the histories of these seeds, a few at a time; verdicts come as they are ready."""
    context = multiprocessing.get_context("fork")
    todo, done = context.SimpleQueue(), context.SimpleQueue()
    processes = [
        context.Process(target=_slot, args=(todo, done, only, plant), daemon=True)
        for _ in range(min(slots, len(seeds)))
    ]
    for process in processes:
        process.start()
    for seed in seeds:
        todo.put((seed, dialects_of(ledger, seed)))
    for _ in processes:
        todo.put(None)
    for _ in seeds:
        yield done.get()
    for process in processes:
        process.join()


def _report(verdicts: list[Verdict], seconds: float) -> None:
    failed = [one for one in verdicts if one.problems]
    planned = Counter(kind for one in verdicts for kind in one.kinds)
    fired = Counter(text.partition("(")[0] for one in verdicts for text in one.fired)
    outside = {text.partition("(")[0] for one in verdicts for text in one.planned}
    print(f"\n{'fault':<20} planned  happened")
    for kind, count in sorted(planned.items()):
        print(f"{kind:<20} {count:>7}  {fired[kind] if kind in outside else 'scripted':>8}")
    print(f"\n{'ledger':<12} histories  failed  records  workers  in vain  polls")
    for dialect in DIALECTS:
        ours = [one for one in verdicts if one.dialect == dialect]
        sums = [sum(getattr(one, name) for one in ours) for name in ("records", "workers", "requests_in_vain", "polls")]
        bad = sum(bool(one.problems) for one in ours)
        print(f"{dialect:<12} {len(ours):>9} {bad:>7} {sums[0]:>8} {sums[1]:>8} {sums[2]:>8} {sums[3]:>6}")
    for note in sorted({note for one in verdicts for note in one.notes}):
        print(f"Note: {note}.")
    print(f"\n{len(verdicts) - len(failed)} of {len(verdicts)} histories passed in {seconds:.0f} s.")
    for one in failed:
        print(f"Play it again: {one.command}    (kept in {one.folder})")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Plays histories of faults against real workers.")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=30, help="how many seeds")
    parser.add_argument("--ledger", choices=(*DIALECTS, "both"), default="both")
    parser.add_argument(
        "--kinds", default="", help=f"faults from outside, by comma: {', '.join(KINDS)}; all by default"
    )
    parser.add_argument("--slots", type=int, default=SLOTS, help="histories at a time")
    parser.add_argument("--plant", choices=sorted(BUGS), help="put a known bug into the workers")
    given = parser.parse_args()
    only = tuple(filter(None, given.kinds.split(",")))
    if unknown := set(only) - set(KINDS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    ledger = given.ledger
    if find_binaries() is None and ledger != "sqlite":
        print("PostgreSQL is not installed here; SQLite only.")
        ledger = "sqlite"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.monotonic()
    verdicts: list[Verdict] = []
    seeds = range(given.seed, given.seed + given.runs)
    for one in campaign(seeds, ledger, only=only, plant=given.plant, slots=given.slots):
        one.command += f" KINDS={given.kinds}" if only else ""
        verdicts.append(one)
        result = "FAILED" if one.problems else "passed"
        kinds = ", ".join(f"{kind} x{n}" if n > 1 else kind for kind, n in sorted(Counter(one.kinds).items()))
        print(f"{one.seed:>6} {one.dialect:<10} {result} {one.seconds:5.1f} s  {kinds}", flush=True)
        for problem in one.problems[:8]:
            print(f"       {problem}", flush=True)
        if one.problems:
            print(f"       {one.command}    (kept in {one.folder})", flush=True)
    _report(verdicts, time.monotonic() - started)
    return int(any(one.problems for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
