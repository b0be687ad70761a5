"""Writes outcomes off the engine's thread: flush, seal, complete.

Outcomes of a shard are flushed every `FLUSH_ROWS` or `FLUSH_S`, whichever is first, so that a
crash loses little. When the last outcome of a shard has been handed over, the same thread flushes
the rest, seals the shard and completes it. A store that is away is waited for; a refusal by the
ledger means that the lease is over, and what comes for that shard from then on is counted as waste.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.waste import Cause, Wasted
from batch_assets.errors import Fenced, ShardTrouble, StoreError
from batch_assets.failpoints import failpoint
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put
from batch_assets.storage.sealed import SealedFile, Sealer
from batch_assets.worker.buffers import ATTEMPTED, Abandon, Answered, Buffer, Finish, FlushAll, Item, WasteNote, tokens
from batch_assets.worker.events import Event, ShardFailed, ShardFenced, ShardSealed
from batch_assets.worker.patience import Patience

FLUSH_ROWS = 256
FLUSH_S = 1.0
BACKLOG_MAX = 4096  # outcomes waiting for a store that is away: no new records beyond, memory stays bounded
_QUEUE_MAX = 4 * BACKLOG_MAX  # what is in flight then still finds its place, without anybody waiting


T = TypeVar("T")


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
        self._inbox: queue.Queue[Item | None] = queue.Queue(_QUEUE_MAX)
        self._events: queue.Queue[Event] = queue.Queue()
        self._buffers: dict[tuple[int, int], Buffer] = {}  # by shard and epoch
        self._fenced: set[tuple[int, int]] = set()
        self._failure: BaseException | None = None
        self._given_up = threading.Event()
        self.news = threading.Event()  # something has happened that the worker's loop may be waiting for
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
        self._put(Answered(lease, outcome))

    def finish(self, lease: Lease) -> None:
        """No more outcomes of this shard will come: seal and complete it."""
        self._put(Finish(lease))

    def abandon(self, lease: Lease, *, on_trial: bool) -> None:
        """The lease is over: nothing more is written for it, except what was wasted.

        `on_trial` says that a single record stood alone in the engine: the ledger hears that this worker is
        alive, so that the record does not pay for a lease that was only lost.
        """
        self._fenced.add((lease.shard, lease.epoch))
        self._put(Abandon(lease, on_trial))

    def waste(self, lease: Lease, cause: Cause, wasted: Wasted) -> None:
        """Count work that ended in nothing."""
        self._put(WasteNote(lease, cause, wasted))

    @property
    def is_behind(self) -> bool:
        """So much waits to be written that no new records should go into the engine."""
        return self._inbox.qsize() > BACKLOG_MAX

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything handed over so far is stored (or refused).

        False, and nothing more is tried, when the store was away for too long: the records stay pending.
        """
        if self._given_up.is_set():
            return False
        give_up_at = time.monotonic() + deadline_s
        flushed = self.flush_soon()
        while not flushed.wait(0.1):
            self.check()
            if time.monotonic() > give_up_at:
                self._given_up.set()
                return False
        return True

    def flush_soon(self) -> threading.Event:
        """Ask for a flush; the event is set when everything handed over so far is stored, or refused."""
        request = FlushAll()
        self._put(request)
        return request.done

    @property
    def given_up(self) -> threading.Event:
        """Set when the store was away for too long at the end: nothing more is tried."""
        return self._given_up

    @property
    def failed(self) -> bool:
        """The thread has stopped with an error."""
        return self._failure is not None

    def events(self) -> list[Event]:
        """What happened since the last call. Raises what stopped the thread, if anything did."""
        self.check()
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._events.get_nowait())
        return found

    def check(self) -> None:
        """Raise the error that stopped the thread."""
        if self._failure is not None:
            raise self._failure

    def _put(self, item: Item) -> None:
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
            self.news.set()

    def _handle(self, item: Item) -> None:
        if isinstance(item, FlushAll):
            self._flush_all()
            item.done.set()
            return
        lease = item.lease
        key = (lease.shard, lease.epoch)
        buffer = self._buffers.setdefault(key, Buffer(lease))
        if isinstance(item, Abandon):
            self._say_alive(item)
            self._refuse(buffer, [])
        elif isinstance(item, WasteNote):
            buffer.add_waste(item.cause, item.wasted)
        elif key in self._fenced:
            self._refuse(buffer, [item.outcome] if isinstance(item, Answered) else [])
        elif isinstance(item, Answered):
            (buffer.results if isinstance(item.outcome, Result) else buffer.failures).append(item.outcome)  # type: ignore[arg-type]
            if len(buffer) >= FLUSH_ROWS:
                self._guarded(buffer, lambda: self._flush(buffer))
        elif isinstance(item, Finish):
            self._guarded(buffer, lambda: self._complete(buffer))

    def _say_alive(self, abandoned: Abandon) -> None:
        if abandoned.on_trial:
            with contextlib.suppress(StoreError):
                self._ledger.trials.seen_alive(abandoned.lease)

    def _flush_all(self) -> None:
        for buffer in list(self._buffers.values()):
            self._guarded(buffer, lambda buffer=buffer: self._flush(buffer))  # type: ignore[misc]
            self._write_waste(buffer)
            if not len(buffer):
                self._keep_totals_only(buffer)

    def _keep_totals_only(self, buffer: Buffer) -> None:
        """A lease that wasted nothing leaves nothing behind; the totals of the others are a few numbers."""
        if not buffer.waste:
            self._buffers.pop((buffer.lease.shard, buffer.lease.epoch), None)

    def _guarded(self, buffer: Buffer, write: Callable[[], None]) -> None:
        """Run a write; a refusal ends the shard for this worker."""
        lease = buffer.lease
        if (lease.shard, lease.epoch) in self._fenced:
            self._refuse(buffer, ())
            return
        try:
            write()
        except Fenced as refusal:
            self._fenced.add((lease.shard, lease.epoch))
            self._refuse(buffer, ())
            self._tell(ShardFenced(lease=lease, reason=str(refusal)))
        except ShardTrouble as trouble:
            self._tell(ShardFailed(lease=lease, reason=str(trouble)))

    def _refuse(self, buffer: Buffer, more: Sequence[Result | Failure]) -> None:
        """Answers that came too late, or whose lease is over: waste."""
        for outcome in (*buffer.results, *buffer.failures, *more):
            buffer.add_waste(Cause.LOST_LEASE, tokens(outcome))
        buffer.results, buffer.failures = [], []

    def _flush(self, buffer: Buffer) -> None:
        if not len(buffer):
            return
        put = Put(lease=buffer.lease, results=buffer.results, failures=buffer.failures, engine=self._engine_label)
        receipt = self._patiently("storing results", buffer, lambda: self._ledger.outcomes.put(put))
        if receipt is None:
            return
        self.totals.stored += receipt.stored
        self.totals.dead_lettered += receipt.dead_lettered
        self.totals.discarded += receipt.discarded
        buffer.add_waste(Cause.DUPLICATE, receipt.wasted)
        for failure in buffer.failures:
            if failure.output_tokens or failure.reason in ATTEMPTED:
                cause = Cause.TIMEOUT if failure.reason is Reason.TIMEOUT else Cause.FAILED_ATTEMPT
                buffer.add_waste(cause, tokens(failure))
        buffer.results, buffer.failures = [], []

    def _write_waste(self, buffer: Buffer) -> None:
        if not buffer.waste_changed:
            return
        with contextlib.suppress(StoreError):  # a total that could not be written is written with the next one
            self._ledger.waste.record(buffer.lease, buffer.waste)
            buffer.waste_changed = False

    def _tell(self, event: Event) -> None:
        self._events.put(event)
        self.news.set()

    def _patiently(self, what: str, buffer: Buffer, action: Callable[[], T]) -> T | None:
        """Wait for a store that is away; None when the worker, or the lease, has no time left."""
        key = (buffer.lease.shard, buffer.lease.epoch)

        def act() -> T:
            if key in self._fenced:
                raise Fenced(f"The lease on shard {buffer.lease.shard} ended while the store was away.")
            return action()

        return Patience(what, self._given_up).until_done(act)

    def _complete(self, buffer: Buffer) -> None:
        self._flush(buffer)
        lease = buffer.lease
        sealed = self._patiently("sealing", buffer, lambda: self._seal_and_complete(lease))
        if sealed is not None:
            self._tell(ShardSealed(lease=lease, sealed=sealed, dead_letters=lease.records - sealed.rows))

    def _seal_and_complete(self, lease: Lease) -> SealedFile:
        results = self._ledger.outcomes.results_of_shard(lease.job_version, lease.shard)
        failpoint("seal.before_put")
        sealed = self._sealer.seal(lease.shard, results, reopened=lease.reopened)
        failpoint("seal.after_put")
        self._ledger.leases.complete(lease, sealed)
        return sealed
