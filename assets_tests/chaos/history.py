"""What a seed means: one small job, its script, and the faults that are going to hit it. Pure.

The same seed gives the same history: everything is drawn here, from one generator.
Faults are triggered by progress ("when a third of the records is done") or by counts ("the fourth put of
the second worker"); only how long they last is time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets_tests.factories import record_id

DIALECTS = ("sqlite", "postgresql")

# Passed by an operator's command or while a version is made; the failpoints of these are for planned kills.
_OF_OPERATORS = {
    "cancel",
    "drop_rows",
    "forget",
    "move_files",
    "publish",
    "requeue",
    "retire",
    "retry_dead_letters",
    "verdicts",
}
_OF_COORDINATORS = {"pin": ("migrate", "register"), "plan": ("attach", "plan")}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The job, and how closely its workers look at the clock."""

    records: int
    shard_size: int
    workers: int
    window: int  # records in a worker's engine at a time
    delay_s: float  # from submission to answer
    flush_rows: int
    flush_s: float
    lease_s: float = 2.0
    renew_every_s: float = 0.4
    drain_s: float = 1.5
    progress_deadline_s: float = 30.0
    record_deadline_s: float = 30.0
    engine_process: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong from outside of the job."""

    kind: str
    at: float = 0.0  # when this share of the records is done
    worker: int = 0
    hold_s: float = 0.0  # how long it lasts, or how long the notice is
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}(at {self.at:.2f}, worker {self.worker}, {self.hold_s:g} s) {self.detail}".rstrip()


@dataclass(frozen=True, kw_only=True)
class History:
    """A job and its fate."""

    seed: int
    dialect: str
    shape: Shape
    script: Mapping[str, Mapping[str, Any]]  # record id -> behaviour in the scripted engine
    empty: tuple[int, ...]  # records without text: dead letters from the start
    faults: tuple[Fault, ...]

    def having(self, behaviour: str) -> set[str]:
        """The records that misbehave in this way."""
        return {record for record, does in self.script.items() if behaviour in does}

    def kinds(self) -> list[str]:
        """Everything that goes wrong, by name, once for each time."""
        scripted = [name for does in self.script.values() for name in does if name not in ("delay_s", "text")]
        texts = ["bad answer" for does in self.script.values() if "text" in does]
        return [fault.kind for fault in self.faults] + scripted + texts

    def has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.faults)


def places(source: Path) -> list[str]:
    """Every failpoint that a worker can come by, as the source names them."""
    text = "\n".join(path.read_text() for path in sorted(source.rglob("*.py")))
    transactions = set(re.findall(r'\.write\("([a-z_]+)"\)', text)) - _OF_OPERATORS
    transactions -= {name for names in _OF_COORDINATORS.values() for name in names}
    around = {f"{name}.{moment}" for name in transactions for moment in ("before_commit", "after_commit")}
    return sorted(around | set(re.findall(r'failpoint\("([a-z_]+\.[a-z_]+)"\)', text)))


def draw(seed: int, dialect: str, failpoints: list[str], *, only: Collection[str] = ()) -> History:
    """The history of a seed. `failpoints` are the places from the source, in order.

    With `only`, nothing but these kinds comes from outside of the job.
    """
    dice = random.Random(f"{seed}/{dialect}")
    shape = _shape(dice)
    script, shape = _script(dice, shape)
    kinds = [kind for kind, fault in KINDS.items() if dialect in fault.dialects and (not only or kind in only)]
    weights = [KINDS[kind].weight for kind in kinds]
    chosen = dice.choices(kinds, weights, k=dice.choice((1, 2, 2, 3, 3, 4, 5)))
    faults = tuple(KINDS[kind].make(dice, shape, failpoints) for kind in chosen)
    if any(fault.kind == "engine_killed" for fault in faults):
        shape = Shape(**{**vars(shape), "engine_process": True})
    free = [n for n in range(shape.records) if record_id(n) not in script]
    empty = tuple(sorted(dice.sample(free, dice.choice((0, 0, 1, 3)))))
    return History(seed=seed, dialect=dialect, shape=shape, script=script, empty=empty, faults=faults)


def _shape(dice: random.Random) -> Shape:
    return Shape(
        records=dice.randrange(150, 401, 10),
        shard_size=dice.choice((20, 25, 30, 40, 50)),
        workers=dice.choice((1, 2, 2, 3, 3, 4)),
        window=dice.choice((8, 16, 24, 32)),
        delay_s=dice.choice((0.05, 0.1, 0.15, 0.2)),
        flush_rows=dice.choice((5, 10, 20, 40)),
        flush_s=dice.choice((0.05, 0.15, 0.3)),
        lease_s=dice.choice((2.0, 2.5, 3.0)),
        engine_process=dice.random() < 0.3,
    )


def _script(dice: random.Random, shape: Shape) -> tuple[dict[str, dict[str, Any]], Shape]:
    """Bad records, and deadlines short enough for them to matter."""
    numbers = dice.sample(range(shape.records), 12)
    script: dict[str, dict[str, Any]] = {}

    def plant(share: float, most: int, make: Callable[[], dict[str, Any]]) -> bool:
        if dice.random() >= share:
            return False
        for _ in range(dice.randint(1, most)):
            script[record_id(numbers.pop())] = make()
        return True

    plant(0.35, 2, lambda: {"kills_engine": True, "delay_s": dice.choice((0.0, shape.delay_s))})
    plant(0.2, 1, lambda: {"kills_worker": True, "delay_s": dice.choice((0.0, shape.delay_s))})
    plant(0.3, 2, lambda: {"text": dice.choice(("not JSON", '{"category": "weather"}'))})
    plant(0.3, 2, lambda: {"fail_attempts": dice.choice((1, 2))})
    never = plant(0.2, 2, lambda: {"never_returns": True})
    hangs = plant(0.15, 1, lambda: {"hangs_engine": True})
    if never or hangs:
        shape = Shape(**{**vars(shape), "record_deadline_s": 1.2, "progress_deadline_s": 0.6 if hangs else 30.0})
    return script, shape


# --- faults ----------------------------------------------------------------------------------------

Make = Callable[[random.Random, Shape, list[str]], Fault]


@dataclass(frozen=True, kw_only=True)
class _Kind:
    make: Make
    weight: int
    dialects: tuple[str, ...] = DIALECTS


def _on_worker(kind: str, holds: Callable[[random.Random, Shape], float] = lambda _dice, _shape: 0.0) -> Make:
    def make(dice: random.Random, shape: Shape, _places: list[str]) -> Fault:
        at, worker = round(dice.uniform(0.02, 0.97), 2), dice.randrange(shape.workers)
        return Fault(kind=kind, at=at, worker=worker, hold_s=round(holds(dice, shape), 2))

    return make


def _below_and_beyond_the_lease(dice: random.Random, shape: Shape) -> float:
    return shape.lease_s * dice.choice((0.3, 0.8, 1.0, 1.3, 1.6))


def _failpoint(dice: random.Random, shape: Shape, names: list[str]) -> Fault:
    name, action = dice.choice(names), dice.choice(("kill", "kill", "stop", "lose", "sleep"))
    often = name.partition(".")[0] in ("put", "renew", "engine")
    nth = dice.randint(1, 8 if often else 3)
    hold_s = round(_below_and_beyond_the_lease(dice, shape), 2)
    spelling = f"sleep:{hold_s:g}" if action == "sleep" else action
    worker, life = dice.randrange(shape.workers), dice.choice((0, 0, 0, 1))
    return Fault(kind="failpoint", at=float(life), worker=worker, hold_s=hold_s, detail=f"{name}={spelling}@{nth}")


def _coordinator(dice: random.Random, _shape: Shape, _names: list[str]) -> Fault:
    command = dice.choice(sorted(_OF_COORDINATORS))
    name, moment = dice.choice(_OF_COORDINATORS[command]), dice.choice(("before_commit", "after_commit"))
    return Fault(kind="coordinator_killed", detail=f"{command} {name}.{moment}=kill")


def _cut(dice: random.Random, shape: Shape, _names: list[str]) -> Fault:
    moment = dice.choice(("before_commit", "after_commit"))
    return Fault(kind="connection_cut", at=round(dice.uniform(0.02, 0.97), 2), detail=moment)


def _clock(dice: random.Random, shape: Shape, _names: list[str]) -> Fault:
    return Fault(kind="wrong_clock", worker=dice.randrange(shape.workers), hold_s=dice.choice((-3600.0, 3600.0)))


_SERVER = ("postgresql",)
KINDS = {
    "worker_killed": _Kind(make=_on_worker("worker_killed"), weight=5),
    "worker_frozen": _Kind(make=_on_worker("worker_frozen", _below_and_beyond_the_lease), weight=5),
    # 120 s, 30 s and nothing in the clouds: longer than the drain, shorter than it, none.
    "notice": _Kind(make=_on_worker("notice", lambda dice, _shape: dice.choice((3.0, 0.4, 0.0))), weight=4),
    "engine_killed": _Kind(make=_on_worker("engine_killed"), weight=2),
    "failpoint": _Kind(make=_failpoint, weight=8),
    "coordinator_killed": _Kind(make=_coordinator, weight=1),
    "restarter_killed": _Kind(make=_on_worker("restarter_killed"), weight=1),
    "wrong_clock": _Kind(make=_clock, weight=2),
    "disk_full": _Kind(make=_on_worker("disk_full", _below_and_beyond_the_lease), weight=2),
    "slow_store": _Kind(make=_on_worker("slow_store", _below_and_beyond_the_lease), weight=3),
    "server_restarted": _Kind(make=_on_worker("server_restarted"), weight=2, dialects=_SERVER),
    "connection_cut": _Kind(make=_cut, weight=4, dialects=_SERVER),
    "network_silent": _Kind(make=_on_worker("network_silent", _below_and_beyond_the_lease), weight=2, dialects=_SERVER),
}
