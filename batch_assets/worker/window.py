"""The records in the engine: what is in flight, what waits to go in again, who is on trial.

Pure bookkeeping over `Prepared` records; the worker's loop does the talking to engine and ledger.
When the engine dies, everything in flight becomes suspect and is tried again in ever smaller groups,
alone in the engine, until the culprit stands alone (`core/suspects.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from batch_assets.core.suspects import Groups, Trial, accuse, acquit
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
    def is_idle(self) -> bool:
        """Nothing is in the engine and nothing waits to go in."""
        return not (self._in_flight or self._again or self.on_trial)

    @property
    def on_trial(self) -> bool:
        """New records stay out while suspects are being tried."""
        return bool(self._trial.groups)

    @property
    def room(self) -> int:
        """How many new records may go in now."""
        return 0 if self.on_trial else max(self.size - len(self._in_flight), 0)

    def waiting(self) -> list[Prepared]:
        """Records that go in before any new one: earlier ones once more."""
        return [self._again.popleft() for _ in range(min(self.room, len(self._again)))]

    def entered(self, prepared: Iterable[Prepared], now: float) -> None:
        """These were submitted to the engine."""
        for one in prepared:
            self._in_flight[one.key] = InFlight(one, now)

    def left(self, key: str) -> InFlight | None:
        """This one came out of the engine, or was taken out; None when it is not known here."""
        found = self._in_flight.pop(key, None)
        self._suspects.pop(key, None)
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

    def in_flight(self, shard: int | None = None) -> list[Prepared]:
        """What is in the engine, of one shard or of all."""
        return [one.prepared for one in self._in_flight.values() if shard in (None, one.prepared.shard)]

    def drop_shard(self, shard: int) -> list[Prepared]:
        """Forget a shard's records; returns those to abort in the engine."""
        dropped = self.in_flight(shard)
        for one in dropped:
            del self._in_flight[one.key]
        self._again = deque(one for one in self._again if one.shard != shard)
        self._suspects = {key: one for key, one in self._suspects.items() if one.shard != shard}
        return dropped

    # --- trials --------------------------------------------------------------------------------

    def suspect(self, groups: Iterable[Iterable[Prepared]]) -> None:
        """Try these groups, one after the other, before anything else."""
        for group in map(tuple, groups):
            self._suspects.update({one.key: one for one in group})
            self._trial = Trial(groups=(*self._trial.groups, tuple(one.key for one in group)))

    def try_alone(self, prepared: Prepared) -> None:
        """Try this record next, by itself: it killed the engine and has attempts left."""
        self._suspects[prepared.key] = prepared
        self._trial = Trial(groups=((prepared.key,), *self._trial.groups))

    def engine_died(self) -> Prepared | None:
        """Everything in flight is suspect now. Returns the culprit when only one was in flight."""
        in_flight = {one.key: one for one in self.in_flight()}
        self._in_flight.clear()
        self._trial_running = False
        if not in_flight:
            return None
        self._suspects.update(in_flight)
        self._trial, culprit = accuse(self._trial, tuple(in_flight))
        return self._suspects.pop(culprit) if culprit is not None else None

    def settle_trial(self) -> bool:
        """Acquit groups that have come out of the engine whole, or are gone; whether there was one."""
        before = self._trial
        if self._trial_running and not self._in_flight:
            self._trial = acquit(self._trial)
            self._trial_running = False
        while self._trial.groups and not any(key in self._suspects for key in self._trial.group):
            self._trial = acquit(self._trial)
            self._trial_running = False
        return self._trial != before

    def next_group(self) -> list[Prepared]:
        """The group to try now; empty while another one, or anything else, is in the engine."""
        if self._in_flight or not self.on_trial:
            return []
        return [self._suspects[key] for key in self._trial.group if key in self._suspects]

    def run_group(self) -> None:
        """The next group is going into the engine now."""
        self._trial_running = True

    def groups_of(self, shard: int) -> Groups:
        """The shard's part of the groups on trial, as record ids."""
        suspects = self._suspects
        found = (
            tuple(suspects[key].record_id for key in group if key in suspects and suspects[key].shard == shard)
            for group in self._trial.groups
        )
        return tuple(group for group in found if group)
