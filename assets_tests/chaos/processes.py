"""How workers end, and whether that is explained."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assets_tests.chaos.run import Life, Run

_STORE_FAULTS = ("disk_full", "slow_store", "server_restarted", "connection_cut", "network_silent")
_SENTENCES = (
    "could not do its work",
    "could not be stored",
    "the answer was lost",
    "cannot be kept",
    "could not be read",
)


def wrong_ends(run: Run, lines_by_worker: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """A worker ends with 0, with 75 when it was told to go, by a signal that was sent, or with a sentence."""
    for life in run.lives:
        told = f"worker {life.slot}, life {life.number} (pid {life.pid}) ended with {life.status}"
        text = life.log.read_text(errors="replace") if life.log.is_file() else ""
        if "Traceback" in text:
            yield f"{told} and a traceback, see {life.log.name}: {text[-300:]}"
        elif not _is_explained(run, life, text, lines_by_worker):
            yield f"{told}, and nothing explains it: {text[-300:]}"


def _is_explained(run: Run, life: Life, text: str, lines_by_worker: Mapping[str, Sequence[Any]]) -> bool:
    if life.status == 0:
        return True
    if life.status in (75, -signal.SIGTERM):  # the signal itself ends a worker that has not begun yet
        return life.told_to_go
    if life.status == -signal.SIGKILL:
        killers = run.history.having("kills_worker")
        last = [lines[-1].record for worker, lines in lines_by_worker.items() if worker.split(":")[-2] == str(life.pid)]
        return life.killed_by is not None or "=kill" in life.failpoints or any(one in killers for one in last)
    may_fail = run.history.has(*_STORE_FAULTS) or "=lose" in life.failpoints
    return life.status in (1, 74) and may_fail and any(sentence in text for sentence in _SENTENCES)
