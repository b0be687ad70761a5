"""Claims shards off the engine's thread, one ahead of need.

A database that hangs or restarts delays the next claim and nothing else: the worker's thread goes on
feeding the engine, and hears at once when a lease is lost.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from batch_assets.core.leases import Lease
from batch_assets.core.suspects import ShardTrial
from batch_assets.errors import Fenced, StoreError
from batch_assets.storage.ledger import Ledger
from batch_assets.worker.heartbeat import Heartbeat
from batch_assets.worker.identity import is_dead_local_owner
from batch_assets.worker.orphans import EngineProcesses
from batch_assets.worker.patience import Patience
from batch_assets.worker.report import WorkerLimits

_log = logging.getLogger(__name__)

IDLE_POLL_S = 1.0  # while other workers hold the last shards; one of them may still die


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A shard to work on, with what was done on it before."""

    lease: Lease
    claimed_at: float  # monotonic seconds, before the claim was sent
    settled: set[str]  # ids that have an outcome; at most one shard's worth
    failed: Mapping[str, int]  # attempts used up
    trial: ShardTrial


class NothingLeft:
    """Every wanted shard is completed, or waits for an operator."""


@dataclass
class Claimer:
    """One thread that claims when asked. Use as a context manager."""

    ledger: Ledger
    job_version: str
    owner: str
    wanted: range
    limits: WorkerLimits
    heartbeat: Heartbeat
    engine_processes: EngineProcesses
    news: threading.Event  # set when there is an answer
    _asked: threading.Event = field(default_factory=threading.Event, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _found: queue.Queue[Claimed | NothingLeft | Exception] = field(default_factory=queue.Queue, init=False)

    def __enter__(self) -> Claimer:
        self._thread = threading.Thread(target=self._run, name="claimer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A claim on its way is waited for a little and handed back; if it hangs, its lease runs out."""
        self._stop.set()
        self._asked.set()
        self._wake.set()
        self._thread.join(timeout=5)

    def ask(self) -> None:
        """One more shard, please; asking again before the answer changes nothing."""
        self._asked.set()

    def look_again(self) -> None:
        """Something has changed: do not sit out the pause."""
        self._wake.set()

    def answer(self) -> Claimed | NothingLeft | None:
        """What came of it, if it has come. Raises what stopped the thread."""
        try:
            found = self._found.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def leftovers(self) -> list[Lease]:
        """After the end: leases that nobody has asked for in time."""
        left: list[Lease] = []
        while True:
            try:
                found = self._found.get_nowait()
            except queue.Empty:
                return left
            if isinstance(found, Claimed):
                left.append(found.lease)

    def _run(self) -> None:
        try:
            while True:
                self._asked.wait()
                if self._stop.is_set():
                    return
                found = self._claim()
                if found is not None:
                    self._asked.clear()
                    self._found.put(found)
                    self.news.set()
        except Exception as error:  # handed to the worker's thread
            self._found.put(error)
            self.news.set()

    def _claim(self) -> Claimed | NothingLeft | None:
        """Claim until there is an answer; None when the worker is ending."""
        while not self._stop.is_set():
            claim_id = uuid.uuid4().hex  # the same until the answer is heard: a lost answer finds its lease
            claimed_at = time.monotonic()
            patience = Patience("claim", self._stop)
            lease = patience.until_done(lambda claim_id=claim_id: self._try_claim(claim_id))  # type: ignore[misc]
            if lease is not None:
                self.heartbeat.hold(lease, claimed_at=claimed_at)
                if (claimed := self._look_up(lease, claimed_at)) is not None:
                    return claimed
                continue
            if self._stop.is_set():
                return None
            if not patience.until_done(lambda: self.ledger.leases.outstanding(self.job_version, self.wanted)):
                return None if self._stop.is_set() else NothingLeft()
            self._wake.wait(IDLE_POLL_S)
            self._wake.clear()
        return None

    def _try_claim(self, claim_id: str) -> Lease | None:
        leases = self.ledger.leases
        recoveries_max = self.limits.recoveries_max

        def claim() -> Lease | None:
            return leases.claim(
                self.job_version,
                owner=self.owner,
                lease_s=self.limits.lease_s,
                wanted=self.wanted,
                claim_id=claim_id,
                recoveries_max=recoveries_max,
            )

        found = claim()
        if found is None and leases.reclaim_dead(
            self.job_version,
            is_dead_local_owner,
            has_left=self.engine_processes.has_left,
            recoveries_max=recoveries_max,
        ):
            found = claim()
        return found

    def _look_up(self, lease: Lease, claimed_at: float) -> Claimed | None:
        """What was done on the shard before; None when the lease is lost again or the worker is ending."""
        outcomes, version = self.ledger.outcomes, lease.job_version

        def look() -> Claimed:
            return Claimed(
                lease=lease,
                claimed_at=claimed_at,
                settled=outcomes.settled_ids(version, lease.shard),
                failed=outcomes.failed_attempts(version, lease.shard),
                trial=self.ledger.trials.of(lease),
            )

        claimed = Patience("reading the shard", self._stop).until_done(look)
        if claimed is None:
            self._hand_back(lease)
        return claimed

    def _hand_back(self, lease: Lease) -> None:
        self.heartbeat.drop(lease)
        call_quietly(lambda: self.ledger.leases.release(lease))  # else the lease runs out by itself


def call_quietly(action: Callable[[], object]) -> bool:
    """Do something that may as well fail: the store is away, or the lease is over. Whether it was done."""
    try:
        action()
    except (StoreError, Fenced) as error:
        _log.info("%s", error)
        return False
    return True
