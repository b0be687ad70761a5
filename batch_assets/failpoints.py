"""Named places where a test makes the process die, stall or fail. Inert unless armed.

    BATCH_ASSETS_FAILPOINTS="put.after_commit=kill@3; seal.before_put=sleep:2"

Actions: `kill` (SIGKILL), `stop` (SIGSTOP), `lose` (the answer is lost: StoreError), `sleep:SECONDS`.
`@N` waits for the N-th time this process comes by; each failpoint goes off once. Every ledger
transaction has two by its name, `NAME.before_commit` and `NAME.after_commit`; the others are where
`failpoint(...)` is called. Each name stands in one place of the code.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

from batch_assets.errors import InputError, StoreError

VARIABLE = "BATCH_ASSETS_FAILPOINTS"

_ENTRY = re.compile(r"^([a-z_]+\.[a-z_]+)=(kill|stop|lose|sleep:[0-9.]+)(?:@([0-9]+))?$")


def _lose(name: str) -> None:
    raise StoreError(f"Failpoint {name}: the answer was lost.")


def _action(spelling: str) -> Callable[[str], None]:
    if spelling == "kill":
        return lambda _name: os.kill(os.getpid(), signal.SIGKILL)
    if spelling == "stop":
        return lambda _name: os.kill(os.getpid(), signal.SIGSTOP)
    if spelling == "lose":
        return _lose
    seconds = float(spelling.partition(":")[2])
    return lambda _name: time.sleep(seconds)


def _parse(text: str) -> dict[str, list[tuple[int, Callable[[str], None]]]]:
    armed: dict[str, list[tuple[int, Callable[[str], None]]]] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.match(entry)
        if match is None:
            raise InputError(
                f"{VARIABLE}: {entry!r} is no failpoint; write PLACE=kill|stop|lose|sleep:SECONDS, with @N for the N-th time."
            )
        name, action, nth = match.groups()
        armed.setdefault(name, []).append((int(nth or 1), _action(action)))
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))
_passed: dict[str, int] = {}


def arm(text: str) -> None:
    """Arm this process anew, as the variable would have done at its start."""
    global _armed
    _armed = _parse(text)
    _passed.clear()


def failpoint(name: str) -> None:
    """Do here what was armed for this name; nothing otherwise."""
    if not _armed or name not in _armed:
        return
    _passed[name] = _passed.get(name, 0) + 1
    for nth, action in _armed[name]:
        if nth == _passed[name]:
            action(name)
