"""Engine processes of this machine that have outlived their worker.

An engine that was left behind by a killed worker keeps its memory, on a GPU all of it, and the next
engine cannot start. The kernel ends most of them with their worker (`engine/orphan_guard.py`); for
the others each worker notes the processes of its engine in a file, and each start looks through the
files of workers that are gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from batch_assets.worker.identity import is_dead_local_owner, start_time

_log = logging.getLogger(__name__)

END_S = 5.0  # a killed process is gone at once, unless the kernel holds it in a driver call


@dataclass(frozen=True)
class EngineProcesses:
    """The notes of one machine, in a folder of the home."""

    folder: Path

    def note(self, owner: str, pids: tuple[int, ...]) -> None:
        """Remember the processes of this worker's engine."""
        file = self._file(owner)
        file.with_suffix(".left").unlink(missing_ok=True)
        if not pids:
            file.unlink(missing_ok=True)
            return
        draft = file.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"owner": owner, "processes": {pid: start_time(pid) for pid in pids}}))
            draft.replace(file)
        except OSError as error:  # a full disk: the kernel ends most engines with their worker all the same
            _log.warning("The processes of the engine could not be noted in %s (%s).", self.folder, error.strerror)

    def forget(self, owner: str) -> None:
        """The engine was shut down."""
        self._file(owner).unlink(missing_ok=True)

    def leave(self, owner: str) -> None:
        """This worker ends in good order, and could not tell the ledger so."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file(owner).with_suffix(".left").touch()

    def has_left(self, owner: str) -> bool:
        """Whether this owner has ended in good order."""
        return self._file(owner).with_suffix(".left").exists()

    def end_orphans(self) -> list[str]:
        """End what dead workers have left behind; returns a line for each process, for people to read."""
        told: list[str] = []
        for file in sorted(self.folder.glob("*.json")):
            try:
                noted = json.loads(file.read_text())
                owner, processes = str(noted["owner"]), dict(noted["processes"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # another worker has just removed or is replacing it
            if not is_dead_local_owner(owner):
                continue
            # The start time proves that the number was not given to another process meanwhile.
            left = [int(pid) for pid, started in processes.items() if started and start_time(int(pid)) == started]
            told += [_end(pid, owner) for pid in left]
            file.unlink(missing_ok=True)
        for line in told:
            _log.warning("%s", line)
        return told

    def _file(self, owner: str) -> Path:
        return self.folder / f"{hashlib.sha256(owner.encode()).hexdigest()[:24]}.json"


def end_processes(pids: Iterable[int]) -> None:
    """Kill processes of our own that do not end by themselves."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            _log.warning("Killed the engine process %d, which did not shut down.", pid)


def _end(pid: int, owner: str) -> str:
    what = f"engine process {pid}, left behind by worker {owner}"
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return f"The {what}, has ended by itself."
    except PermissionError:
        return f"The {what}, cannot be ended from here: it belongs to another user. End it by hand: kill -9 {pid}"
    deadline = time.monotonic() + END_S
    while start_time(pid) is not None:
        if time.monotonic() > deadline:
            return f"The {what}, does not end; it may still hold the accelerator's memory. Look at it: ps -p {pid}"
        time.sleep(0.05)
    return f"Ended the {what}."
