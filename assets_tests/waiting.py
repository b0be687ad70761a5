"""Waiting for something to become true, with a deadline and a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.1


def wait_for(what: str, look: Callable[[], T], *, timeout_s: float = 60.0) -> T:
    """Look until the answer is truthy; return it. Fails naming what was waited for and the last answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {timeout_s:g} s; the last answer was {found!r}")
        time.sleep(POLL_S)
