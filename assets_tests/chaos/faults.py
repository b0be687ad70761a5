"""How each fault is done to a run. True: done; False: there is nothing to do it to yet."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from assets_tests.chaos.history import Fault
from assets_tests.chaos.run import Life, Run, engine_processes

DISK_MIB = 64  # of the small disk that is filled up
_SLOW_S = 0.1  # on the way to the database and back, for every message


def carry_out(run: Run, fault: Fault) -> bool:
    """Do it now."""
    return _HOW[fault.kind](run, fault)


def _on_life(act: Callable[[Run, Fault, Life], bool]) -> Callable[[Run, Fault], bool]:
    def how(run: Run, fault: Fault) -> bool:
        life = run.living(fault.worker)
        return life is not None and life.stopped_until is None and act(run, fault, life)

    return how


def _kill(_run: Run, fault: Fault, life: Life) -> bool:
    life.killed_by = fault.kind
    life.send(signal.SIGKILL)
    return True


def _freeze(_run: Run, fault: Fault, life: Life) -> bool:
    life.send(signal.SIGSTOP)
    life.stopped_until = time.monotonic() + fault.hold_s
    return True


def _give_notice(run: Run, fault: Fault, life: Life) -> bool:
    """SIGTERM, and SIGKILL when the time is over."""

    def time_is_over() -> None:
        if life.status is None:
            life.killed_by = life.killed_by or fault.kind
            life.send(signal.SIGKILL)

    life.told_to_go = True
    life.send(signal.SIGTERM)
    if fault.hold_s:
        run.later(fault.hold_s, time_is_over)
    else:
        time_is_over()
    return True


def _kill_engine(_run: Run, _fault: Fault, life: Life) -> bool:
    found = engine_processes(life)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _kill_restarter(run: Run, _fault: Fault) -> bool:
    run.forget_workers()
    return True


def _fill_disk(run: Run, fault: Fault) -> bool:
    """Nothing more can be written in the home: no object, and with SQLite no row."""
    filler = run.home / "filler"
    if not os.path.ismount(run.home):
        run.notes.append("disk_full was left out: a small disk cannot be mounted here")
        return True
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    run.later(fault.hold_s, lambda: filler.unlink(missing_ok=True))
    return True


def _slow_store(run: Run, fault: Fault) -> bool:
    """PostgreSQL answers late; SQLite's write lock is taken by somebody else."""
    if run.proxy is not None:
        proxy = run.proxy
        proxy.delay_s = _SLOW_S
        run.later(fault.hold_s, lambda: setattr(proxy, "delay_s", 0.0))
    else:
        ledger = run.home / "ledger.sqlite"
        threading.Thread(target=_hold_lock, args=(ledger, fault.hold_s), daemon=True).start()
    return True


def _hold_lock(ledger: Path, hold_s: float) -> None:
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(ledger, timeout=20)) as connection:
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(hold_s)
        connection.execute("ROLLBACK")


def _restart_server(run: Run, _fault: Fault) -> bool:
    assert run.server is not None
    run.server.restart()
    return True


def _cut(run: Run, fault: Fault) -> bool:
    assert run.proxy is not None
    run.proxy.cut(fault.detail)
    return True


def _silence(run: Run, fault: Fault) -> bool:
    assert run.proxy is not None
    run.proxy.silence()
    run.later(fault.hold_s, run.proxy.resume)
    return True


_HOW: dict[str, Callable[[Run, Fault], bool]] = {
    "worker_killed": _on_life(_kill),
    "worker_frozen": _on_life(_freeze),
    "notice": _on_life(_give_notice),
    "engine_killed": _on_life(_kill_engine),
    "restarter_killed": _kill_restarter,
    "disk_full": _fill_disk,
    "slow_store": _slow_store,
    "server_restarted": _restart_server,
    "connection_cut": _cut,
    "network_silent": _silence,
}


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of its own over a folder; says whether that was possible."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-o", f"size={DISK_MIB}m"]
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], capture_output=True).returncode
    except OSError:
        mounted = 1
    try:
        yield mounted == 0
    finally:
        if mounted == 0:
            subprocess.run(["umount", "-l", folder], check=True)
