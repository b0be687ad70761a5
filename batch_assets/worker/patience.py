"""Waiting for a store that is away: a full disk, a restarting database, a network that is cut."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import stamina

from batch_assets.errors import StoreError

_log = logging.getLogger(__name__)

STORE_PATIENCE_S = 900.0  # nothing is lost meanwhile; longer than that, a person should know
WAIT_MAX_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """Does something again and again while the store is away. `give_up` ends the waiting early."""

    what: str
    give_up: threading.Event

    def until_done(self, action: Callable[[], T]) -> T | None:
        """The action's answer; None when the waiting was ended. Raises StoreError after a long time.

        Whatever is done again must change nothing twice: an answer may have been lost.
        """
        try:
            for attempt in stamina.retry_context(
                on=self._is_worth_waiting, attempts=None, timeout=STORE_PATIENCE_S, wait_max=WAIT_MAX_S
            ):
                with attempt:
                    return action()
        except StoreError:
            if not self.give_up.is_set():
                raise
        return None

    def _is_worth_waiting(self, error: Exception) -> bool:
        if not isinstance(error, StoreError) or self.give_up.is_set():
            return False
        _log.warning("%s: %s Trying again for up to %d minutes.", self.what, error, STORE_PATIENCE_S // 60)
        return True
