"""Making a ledger's answer get lost, or its call stand still, before or after its commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from batch_assets import failpoints
from batch_assets.errors import StoreError

T = TypeVar("T")

BEFORE, AFTER = "before_commit", "after_commit"


@contextmanager
def losing(place: str) -> Iterator[list[str]]:
    """The next call that comes by `place` (as in `put.after_commit`) raises StoreError; the list then names it."""
    lost: list[str] = []

    def lose(name: str) -> None:
        lost.append(name)
        raise StoreError(f"{name}: the answer was lost.")

    failpoints._passed.pop(place, None)
    failpoints._armed[place] = [(1, lose)]
    try:
        yield lost
    finally:
        del failpoints._armed[place]


@dataclass
class Held:
    """A thread that stands still at a failpoint."""

    reached: threading.Event = field(default_factory=threading.Event)
    may_go: threading.Event = field(default_factory=threading.Event)


@contextmanager
def holding(place: str) -> Iterator[Held]:
    """The next call that comes by `place` stands still there until it may go, at the latest at the end."""
    held = Held()

    def stand(_name: str) -> None:
        held.reached.set()
        held.may_go.wait(60)

    failpoints._passed.pop(place, None)
    failpoints._armed[place] = [(1, stand)]
    try:
        yield held
    finally:
        held.may_go.set()
        del failpoints._armed[place]


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Runs the call in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
