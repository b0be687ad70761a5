"""Making a ledger's answer get lost, before or after its commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batch_assets import failpoints
from batch_assets.errors import StoreError

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
