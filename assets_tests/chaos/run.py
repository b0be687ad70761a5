"""One history, carried out: real worker processes, restarted when they end, and faults at their time.

The runner is the scheduler: it starts a worker again whenever one has ended and shards are open. What must
hold meanwhile is asked by a thread of its own, against the database itself, past any proxy.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from pydantic import SecretStr

from assets_tests import invariants
from assets_tests.chaos import audit
from assets_tests.chaos.history import Fault, History
from assets_tests.chaos.nursery import Nursery, Order
from assets_tests.factories import make_job, make_records
from assets_tests.postgresql import Server
from assets_tests.proxy import Proxy
from batch_assets.errors import StoreError
from batch_assets.operations.deployment import Deployment
from batch_assets.settings import Settings
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.tables import shards
from batch_assets.worker.orphans import EngineProcesses

JOB = "chaos"
LOG = "requests.jsonl"
DEADLINE_S = 90.0  # for a whole history; a few seconds are usual
LEAVE_S = 20.0  # for workers to notice that nothing is left
LIVES_MAX = 150  # of all workers; a worker that ends at once, again and again, is stuck as well
_TICK_S = 0.03
_orders = itertools.count(1)


class Stuck(AssertionError):
    """The history does not come to its end."""


@dataclass(eq=False)
class Life:
    """A worker from start to end."""

    slot: int
    number: int  # of the slot's lives, from 0
    pid: int
    log: Path
    failpoints: str
    clock_s: float = 0.0
    status: int | None = None
    killed_by: str | None = None
    told_to_go: bool = False
    stopped_until: float | None = None

    def send(self, number: int) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass
class Run:
    """A history under way, and afterwards what is known of it."""

    history: History
    folder: Path
    nursery: Nursery
    server: Server | None
    carry_out: Callable[[Run, Fault], bool]  # True when the fault has been done
    plant: str | None = None
    proxy: Proxy | None = None
    lives: list[Life] = field(default_factory=list)
    fired: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    polls: int = 0
    broken: list[str] = field(default_factory=list)  # invariants, as the polling thread found them
    version: str = ""
    seconds: float = 0.0
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _slots: dict[int, Life] = field(default_factory=dict)

    # --- the place -------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def requests_log(self) -> Path:
        return self.folder / "jobs" / JOB / LOG

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the job, pin and plan it as separate processes, and look at the ledger."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_job()
        self._url = f"sqlite:///{self.home / 'ledger.sqlite'}" if self.server is None else self.server.new_database()
        self._worker_url = self._url
        if self.proxy is not None and self.server is not None:
            self._worker_url = self._url.replace(f":{self.server.port}/", f":{self.proxy.port}/")
        self._coordinate("pin", JOB)
        settings = Settings(home=self.home, jobs=self.folder / "jobs", ledger=SecretStr(self._url))
        self.deployment = Deployment(settings)
        try:
            [registered] = self.ledger.plans.list(JOB)
            self.version = registered.job_version
            self._coordinate("plan", self.version)
            audit.install(self.ledger)
            yield
        finally:
            self.ledger.close()

    @property
    def ledger(self) -> Ledger:
        return self.deployment.ledger

    def _write_job(self) -> None:
        shape = self.history.shape
        records = make_records(shape.records)
        for number in self.history.empty:
            records[number] |= {"subject": " ", "body": None}
        make_job(
            self.folder / "jobs",
            name=JOB,
            records=records,
            shard_size=shape.shard_size,
            script={
                "defaults": {"delay_s": shape.delay_s, "process": shape.engine_process},
                "requests_log": LOG,
                "records": {record: dict(does) for record, does in self.history.script.items()},
            },
            engine={
                "restarts_max": 60,
                "progress_deadline_s": shape.progress_deadline_s,
                "record_deadline_s": shape.record_deadline_s,
            },
            lease_s=shape.lease_s,
            renew_every_s=shape.renew_every_s,
            recoveries_max=1000,  # no history aims at it
            drain_s=shape.drain_s,
            workers=shape.workers,
        )

    def _coordinate(self, command: str, argument: str) -> None:
        """Run a command; where the history says so, kill it in the middle first."""
        log = self.folder / f"{command}.log"
        for fault in self.history.faults:
            if fault.kind == "coordinator_killed" and fault.detail.startswith(f"{command} "):
                pid = self._start([command, argument], log, failpoints=fault.detail.split()[1])
                if self._ended(pid) == -signal.SIGKILL:
                    self.fired.append(fault)
        status = self._ended(self._start([command, argument], log))
        assert status == 0, f"{command} ended with {status}: {log.read_text()[-2000:]}"

    def _ended(self, pid: int) -> int:
        deadline = time.monotonic() + 60
        while (status := self.nursery.status(pid)) is None:
            assert time.monotonic() < deadline, f"process {pid} does not end"
            time.sleep(0.01)
        return status

    def _start(
        self, arguments: list[str], log: Path, *, failpoints: str = "", cold: bool = False, clock_s: float = 0
    ) -> int:
        shape = self.history.shape
        order = Order(
            number=next(_orders),
            arguments=arguments,
            environment={
                "BATCH_ASSETS_HOME": str(self.home),
                "BATCH_ASSETS_JOBS": str(self.folder / "jobs"),
                "BATCH_ASSETS_LEDGER": self._worker_url,
                "BATCH_ASSETS_FAILPOINTS": failpoints,
            },
            log=str(log),
            constants={
                "batch_assets.worker.committer.FLUSH_ROWS": shape.flush_rows,
                "batch_assets.worker.committer.FLUSH_S": shape.flush_s,
                "batch_assets.worker.claimer.IDLE_POLL_S": 0.2,
                "batch_assets.worker.patience.WAIT_MAX_S": 0.5,
                "batch_assets.engine.scripted._IN_FLIGHT_MAX": shape.window,
            },
            cold=cold,
            clock_s=clock_s,
            plant=self.plant,
        )
        return self.nursery.start(order)

    # --- workers ---------------------------------------------------------------------------------

    def living(self, slot: int) -> Life | None:
        """The worker of a slot, unless it has ended."""
        life = self._slots.get(slot)
        return life if life is not None and life.status is None else None

    def forget_workers(self) -> None:
        """As a scheduler that was killed and started again: new workers for all slots, beside the old ones."""
        self._slots.clear()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(_orders), action))

    def _born(self, slot: int) -> Life:
        number = sum(life.slot == slot for life in self.lives)
        faults = self.history.faults
        clock_s = sum(fault.hold_s for fault in faults if fault.kind == "wrong_clock" and fault.worker == slot)
        armed = [f for f in faults if f.kind == "failpoint" and (f.worker, int(f.at)) == (slot, number)]
        self.fired += armed
        self.fired += [f for f in faults if f.kind == "wrong_clock" and f.worker == slot and not number]
        failpoints = "; ".join(fault.detail for fault in armed)
        cold = number == 0 and (self.history.seed + slot) % 8 == 0
        log = self.folder / f"worker-{slot}-{number}.log"
        pid = self._start(["work", self.version], log, failpoints=failpoints, cold=cold, clock_s=clock_s)
        return Life(slot, number, pid, log, failpoints, clock_s)

    def _look_after_workers(self) -> None:
        now = time.monotonic()
        for life in self.lives:
            if life.status is None:
                life.status = self.nursery.status(life.pid)
            if life.status is None and life.stopped_until is None and _is_stopped(life.pid):
                hold_s = max(
                    (f.hold_s for f in self.fired if f.kind == "failpoint" and f.worker == life.slot), default=1
                )
                life.stopped_until = now + hold_s  # a failpoint has done it
            if life.stopped_until is not None and now >= life.stopped_until:
                life.stopped_until = None
                life.send(signal.SIGCONT)
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _fill_slots(self) -> None:
        for slot in range(self.history.shape.workers):
            if self.living(slot) is None:
                if len(self.lives) >= LIVES_MAX:
                    raise Stuck(f"{LIVES_MAX} workers have come and gone")
                life = self._slots[slot] = self._born(slot)
                self.lives.append(life)

    # --- the course of things ----------------------------------------------------------------------

    def play(self) -> None:
        """Until every shard is completed and every worker has left. Raises Stuck when that takes too long."""
        started = time.monotonic()
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(stop,), name="watcher", daemon=True)
        watcher.start()
        try:
            self._until_completed(started + DEADLINE_S)
            self._until_all_have_left()
        finally:
            stop.set()
            watcher.join(30)
            self._end_everything()
            self.seconds = time.monotonic() - started

    def _until_completed(self, deadline: float) -> None:
        waiting = [f for f in self.history.faults if f.kind not in ("failpoint", "coordinator_killed", "wrong_clock")]
        while True:
            self._look_after_workers()
            done = self._look()
            if set(self.states) == {"completed"}:
                return
            self._fill_slots()
            for fault in list(waiting):
                if done >= fault.at * self.history.shape.records and self.carry_out(self, fault):
                    waiting.remove(fault)
                    self.fired.append(fault)
            if "needs_operator" in self.states or time.monotonic() > deadline:
                raise Stuck(f"after {DEADLINE_S:g} s at most: shards are {dict(self.states)}, {done} records are done")
            time.sleep(_TICK_S)

    def _until_all_have_left(self) -> None:
        deadline = time.monotonic() + LEAVE_S
        while any(life.status is None for life in self.lives):
            self._look_after_workers()
            if time.monotonic() > deadline:
                left = [f"worker {life.slot}, life {life.number}" for life in self.lives if life.status is None]
                raise Stuck(f"nothing is left to do, and {', '.join(left)} does not end")
            time.sleep(_TICK_S)

    def _end_everything(self) -> None:
        for _, _, action in sorted(self._timers):
            action()
        self._timers.clear()
        if any(life.status is None for life in self.lives):  # they are stuck: where, is in their logs
            for life in self.lives:
                life.send(signal.SIGUSR1)
            time.sleep(0.5)
        for life in self.lives:
            life.send(signal.SIGKILL)
        for pid in itertools.chain.from_iterable(map(engine_processes, self.lives)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        EngineProcesses(self.home / "engines").end_orphans()  # of workers that were killed last

    def _look(self) -> int:
        """The shards by state, and how many records are done."""
        done = sa.func.sum(shards.c.results + shards.c.dead_letters)
        query = sa.select(shards.c.state, sa.func.count(), done).group_by(shards.c.state)
        with contextlib.suppress(StoreError), self.ledger.database.read() as connection:
            rows = connection.execute(query).all()
            self.states = Counter({row[0]: row[1] for row in rows})
            self._done = sum(int(row[2]) for row in rows)
        return self._done

    _done: int = 0

    def _watch(self, stop: threading.Event) -> None:
        done: invariants.Done | None = None
        while not stop.wait(0.1):
            try:
                done = invariants.check(self.ledger, self.version, earlier=done)
                self.polls += 1
            except StoreError:
                continue  # it is away at the moment
            except AssertionError as error:
                self.broken.append(str(error))
                return


def engine_processes(life: Life) -> list[int]:
    """The children of a worker: what stands for its engine."""
    found: list[int] = []
    for task in Path(f"/proc/{life.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return found


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
