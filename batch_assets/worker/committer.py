"""Writes outcomes off the engine's thread: flush, seal, complete.

Outcomes of a shard are flushed every `FLUSH_ROWS` or `FLUSH_S`, whichever is first, so that a
crash loses little. When the last outcome of a shard has been handed over, the same thread flushes
the rest, seals the shard and completes it. A store that is away is waited for; a refusal by the
ledger means that the lease is over.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import stamina

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Result
from batch_assets.errors import Fenced, StoreError
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put, PutReceipt
from batch_assets.storage.sealed import SealedFile, Sealer

_log = logging.getLogger(__name__)

FLUSH_ROWS = 256
FLUSH_S = 1.0
STORE_PATIENCE_S = 900.0  # a full disk or a restarting database: wait, nothing is lost meanwhile
_QUEUE_MAX = 8192  # outcomes waiting; the worker blocks beyond, so memory stays bounded


@dataclass(frozen=True, kw_only=True)
class ShardSealed:
    """A shard is done for good."""

    lease: Lease
    sealed: SealedFile
    dead_letters: int


@dataclass(frozen=True, kw_only=True)
class ShardFenced:
    """The ledger refused a write: somebody else has the shard."""

    lease: Lease
    reason: str


Event = ShardSealed | ShardFenced


@dataclass
class _Buffer:
    lease: Lease
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.results) + len(self.failures)


@dataclass(frozen=True)
class _Outcome:
    lease: Lease
    outcome: Result | Failure


@dataclass(frozen=True)
class _Finish:
    lease: Lease


class _FlushAll:
    pass


@dataclass
class CommitTotals:
    """What this committer has done."""

    stored: int = 0
    dead_lettered: int = 0
    discarded: int = 0


class Committer:
    """One thread that owns all of a worker's writes. Use as a context manager."""

    def __init__(self, ledger: Ledger, sealer: Sealer, *, engine_label: str) -> None:
        self._ledger = ledger
        self._sealer = sealer
        self._engine_label = engine_label
        self._inbox: queue.Queue[_Outcome | _Finish | _FlushAll | None] = queue.Queue(_QUEUE_MAX)
        self._events: queue.Queue[Event] = queue.Queue()
        self._buffers: dict[int, _Buffer] = {}
        self._fenced: set[tuple[int, int]] = set()
        self._failure: BaseException | None = None
        self._flushed = threading.Event()
        self._given_up = threading.Event()
        self.totals = CommitTotals()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._given_up.is_set():
            return  # the thread is a daemon, waiting for a store that is away
        self._inbox.put(None)
        self._thread.join()

    def add(self, lease: Lease, outcome: Result | Failure) -> None:
        """Hand over an outcome; blocks only when the store is far behind."""
        self._put(_Outcome(lease, outcome))

    def finish(self, lease: Lease) -> None:
        """No more outcomes of this shard will come: seal and complete it."""
        self._put(_Finish(lease))

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything handed over so far is stored (or refused).

        False, and nothing more is tried, when the store was away for too long: the records stay pending.
        """
        if self._given_up.is_set():
            return False
        give_up_at = time.monotonic() + deadline_s
        self._flushed.clear()
        self._put(_FlushAll())
        while not self._flushed.wait(0.1):
            self.check()
            if time.monotonic() > give_up_at:
                self._given_up.set()
                return False
        return True

    @property
    def failed(self) -> bool:
        """The thread has stopped with an error."""
        return self._failure is not None

    def events(self, wait_s: float = 0.0) -> list[Event]:
        """What happened since the last call; waits for the first if asked to.

        Raises what stopped the thread, if anything did.
        """
        self.check()
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=wait_s) if wait_s else self._events.get_nowait())
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return found

    def check(self) -> None:
        """Raise the error that stopped the thread."""
        if self._failure is not None:
            raise self._failure

    def _put(self, item: _Outcome | _Finish | _FlushAll) -> None:
        while True:
            self.check()
            try:
                self._inbox.put(item, timeout=1.0)
                return
            except queue.Full:
                continue

    def _run(self) -> None:
        try:
            flush_at = time.monotonic() + FLUSH_S
            while True:
                try:
                    item = self._inbox.get(timeout=max(flush_at - time.monotonic(), 0.0))
                except queue.Empty:
                    self._flush_all()
                    flush_at = time.monotonic() + FLUSH_S
                    continue
                if item is None:
                    self._flush_all()
                    return
                self._handle(item)
        except BaseException as error:  # handed to the worker's thread, which must not go on without us
            self._failure = error

    def _handle(self, item: _Outcome | _Finish | _FlushAll) -> None:
        if isinstance(item, _FlushAll):
            self._flush_all()
            self._flushed.set()
            return
        lease = item.lease
        if (lease.shard, lease.epoch) in self._fenced:
            return
        buffer = self._buffers.setdefault(lease.shard, _Buffer(lease))
        if buffer.lease.epoch != lease.epoch:
            buffer = self._buffers[lease.shard] = _Buffer(lease)
        if isinstance(item, _Finish):
            self._guarded(lease, lambda: self._complete(buffer))
            self._buffers.pop(lease.shard, None)
            return
        (buffer.results if isinstance(item.outcome, Result) else buffer.failures).append(item.outcome)  # type: ignore[arg-type]
        if len(buffer) >= FLUSH_ROWS:
            self._guarded(lease, lambda: self._flush(buffer))

    def _flush_all(self) -> None:
        for buffer in list(self._buffers.values()):
            self._guarded(buffer.lease, lambda buffer=buffer: self._flush(buffer))  # type: ignore[misc]

    def _guarded(self, lease: Lease, write: Callable[[], None]) -> None:
        """Run a write; a refusal ends the shard for this worker."""
        try:
            write()
        except Fenced as refusal:
            self._fenced.add((lease.shard, lease.epoch))
            self._buffers.pop(lease.shard, None)
            self._events.put(ShardFenced(lease=lease, reason=str(refusal)))

    def _flush(self, buffer: _Buffer) -> None:
        if not len(buffer):
            return
        put = Put(lease=buffer.lease, results=buffer.results, failures=buffer.failures, engine=self._engine_label)
        receipt = self._put_patiently(put)
        self.totals.stored += receipt.stored
        self.totals.dead_lettered += receipt.dead_lettered
        self.totals.discarded += receipt.discarded
        buffer.results, buffer.failures = [], []

    def _put_patiently(self, put: Put) -> PutReceipt:
        for attempt in stamina.retry_context(
            on=self._is_worth_waiting, attempts=None, timeout=STORE_PATIENCE_S, wait_max=10.0
        ):
            with attempt:
                return self._ledger.outcomes.put(put)
        raise AssertionError("retry_context either returns or raises")

    def _is_worth_waiting(self, error: Exception) -> bool:
        if isinstance(error, StoreError) and not self._given_up.is_set():
            _log.warning("%s Trying again for up to %d minutes.", error, STORE_PATIENCE_S // 60)
            return True
        return False

    def _complete(self, buffer: _Buffer) -> None:
        self._flush(buffer)
        lease = buffer.lease
        for attempt in stamina.retry_context(on=StoreError, attempts=5, timeout=STORE_PATIENCE_S, wait_max=10.0):
            with attempt:
                results = self._ledger.outcomes.results_of_shard(lease.job_version, lease.shard)
                sealed = self._sealer.seal(lease.shard, results)
                self._ledger.leases.complete(lease, sealed)
        self._events.put(ShardSealed(lease=lease, sealed=sealed, dead_letters=lease.records - sealed.rows))
