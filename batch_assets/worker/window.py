"""The records in the engine: what is in flight, what waits to go in again, who is on trial.

Pure bookkeeping over `Prepared` records; the worker's loop does the talking to the engine. When the
engine dies, everything in flight becomes suspect and is tried again in ever smaller groups, alone
in the engine, until the culprit stands alone (`core/suspects.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batch_assets.core.suspects import Trial, accuse, acquit
from batch_assets.worker.records import Prepared


@dataclass(frozen=True)
class InFlight:
    """A record in the engine since a monotonic time."""

    prepared: Prepared
    submitted_at: float


class Window:
    """At most `size` records in the engine at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._in_flight: dict[str, InFlight] = {}
        self._again: deque[Prepared] = deque()
        self._suspects: dict[str, Prepared] = {}
        self._trial = Trial()
        self._trial_running = False

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def on_trial(self) -> bool:
        """New records stay out while suspects are being tried."""
        return bool(self._trial.groups)

    @property
    def room(self) -> int:
        """How many new records may go in now."""
        return 0 if self.on_trial else max(self.size - len(self._in_flight), 0)

    def waiting(self) -> list[Prepared]:
        """Records that go in before any new one: the group on trial, or earlier ones once more."""
        if self.on_trial:
            if self._trial_running:
                return []
            self._trial_running = True
            return [self._suspects[key] for key in self._trial.group if key in self._suspects]
        return [self._again.popleft() for _ in range(min(self.room, len(self._again)))]

    def entered(self, prepared: list[Prepared], now: float) -> None:
        """These were submitted to the engine."""
        for one in prepared:
            self._in_flight[one.key] = InFlight(one, now)

    def left(self, key: str) -> InFlight | None:
        """This one came out of the engine, or was taken out; None when it is not known here."""
        found = self._in_flight.pop(key, None)
        self._suspects.pop(key, None)
        self._settle_trial()
        return found

    def again(self, prepared: Prepared) -> None:
        """Put a record in line for its next attempt."""
        self._again.append(prepared)

    def overdue(self, now: float, deadline_s: float) -> list[InFlight]:
        """Records in the engine for longer than the deadline."""
        return [one for one in self._in_flight.values() if now - one.submitted_at > deadline_s]

    def oldest_submission(self, *, default: float) -> float:
        """When the record that is longest in the engine went in."""
        return min((one.submitted_at for one in self._in_flight.values()), default=default)

    def drop_shard(self, shard: int) -> list[str]:
        """Forget a shard's records; returns the keys to abort in the engine."""
        keys = [key for key, one in self._in_flight.items() if one.prepared.shard == shard]
        self._again = deque(one for one in self._again if one.shard != shard)
        self._suspects = {key: one for key, one in self._suspects.items() if one.shard != shard}
        for key in keys:
            del self._in_flight[key]
        self._settle_trial()
        return keys

    def engine_died(self) -> Prepared | None:
        """Everything in flight is suspect now. Returns the culprit when only one was in flight."""
        in_flight = {key: one.prepared for key, one in self._in_flight.items()}
        self._in_flight.clear()
        self._trial_running = False
        if not in_flight:
            return None
        self._suspects.update(in_flight)
        self._trial, culprit = accuse(self._trial, tuple(in_flight))
        return self._suspects.pop(culprit) if culprit is not None else None

    def try_alone(self, prepared: Prepared) -> None:
        """Try this record next, by itself: it killed the engine and has attempts left."""
        self._suspects[prepared.key] = prepared
        self._trial = Trial(groups=((prepared.key,), *self._trial.groups))
        self._trial_running = False

    def _settle_trial(self) -> None:
        """Acquit groups that have come out of the engine whole."""
        if self._trial_running and not self._in_flight:
            self._trial = acquit(self._trial)
            self._trial_running = False
        while self._trial.groups and not any(key in self._suspects for key in self._trial.group):
            self._trial = acquit(self._trial)
            self._trial_running = False
