"""The worker: claim → feed → flush → seal → complete, in one loop over a warm engine.

The next shard is claimed while the current one drains, so the engine never waits for a shard's
tail. All writes happen in the committer's thread, all renewals in the heartbeat's; this thread
only feeds the engine and judges what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pydantic import BaseModel

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.version import JobVersion
from batch_assets.engine.protocol import Engine, EngineInfo, EngineRequest
from batch_assets.errors import EngineDied, EngineUnavailable, SnapshotError
from batch_assets.storage.ledger import Ledger
from batch_assets.worker.committer import Committer, ShardSealed
from batch_assets.worker.heartbeat import Heartbeat
from batch_assets.worker.identity import is_dead_local_owner
from batch_assets.worker.records import Prepared, RecordPreparer, judge
from batch_assets.worker.report import ShardStats, WorkerLimits, WorkerReport
from batch_assets.worker.window import Window

POLL_S = 0.2
IDLE_POLL_S = 1.0  # while other workers hold the last shards; one of them may still die
SHARDS_OPEN_MAX = 2  # the one that drains and the one that fills the room it leaves
SHUTDOWN_S = 30.0
DRAIN_S = 20.0  # within the 25 to 30 s between SIGTERM and SIGKILL that schedulers give


@dataclass
class _Open:
    """A shard that this worker holds."""

    lease: Lease
    source: Iterator[Prepared | Failure]
    claimed_at: float  # monotonic seconds
    seen: set[str] = field(default_factory=set)  # ids taken from the source; at most one shard's worth
    unsettled: int = 0  # records taken from the source that have no outcome yet
    prompt_tokens: int = 0
    output_tokens: int = 0
    exhausted: bool = False
    finishing: bool = False

    @property
    def is_done(self) -> bool:
        return self.exhausted and self.unsettled == 0

    def stats(self) -> ShardStats:
        return ShardStats(
            seconds=time.monotonic() - self.claimed_at,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
        )


@dataclass(kw_only=True)
class Worker:
    """Works on the wanted shards of one version until none is left, or it is told to stop."""

    version: JobVersion
    wanted: range
    owner: str
    ledger: Ledger
    engine: Engine
    preparer: RecordPreparer
    model: type[BaseModel]
    committer_for: Callable[[EngineInfo], Committer]
    limits: WorkerLimits
    on_sealed: Callable[[ShardSealed, ShardStats], None]
    should_stop: Callable[[], bool]
    report: WorkerReport = field(default_factory=WorkerReport)

    def run(self) -> WorkerReport:
        """Work; returns what was done. The engine is shut down on every way out."""
        if not self._outstanding():
            return self.report
        try:
            info = self.engine.start(self.limits.start_deadline_s)
            self.report.engine = info
            self._window = Window(info.in_flight_max)
            self._open: dict[int, _Open] = {}
            self._completed_at = time.monotonic()
            self._claim_again_at = 0.0
            with (
                Heartbeat(
                    self.ledger.leases, lease_s=self.limits.lease_s, renew_every_s=self.limits.renew_every_s
                ) as self._heartbeat,
                self.committer_for(info) as self._committer,
            ):
                try:
                    self._work()
                finally:
                    self._hand_back()
            totals = self._committer.totals
            self.report.results, self.report.dead_letters = totals.stored, totals.dead_lettered
            self.report.duplicates_discarded = totals.discarded
        finally:
            self.engine.shutdown(SHUTDOWN_S)
        return self.report

    def _work(self) -> None:
        while True:
            if self.should_stop():
                self._drain()
                return
            self._drop_lost_leases()
            admitted = 0
            try:
                admitted = self._admit()
                self._collect(POLL_S if len(self._window) else 0.0)
                self._enforce_deadlines()
            except EngineDied as death:
                self._restart_engine(str(death))
            self._finish_shards()
            # With nothing in the engine and nothing to put in, all that is left is the committer's work.
            waiting = self._open and not admitted and not len(self._window)
            self._handle_events(wait_s=POLL_S if waiting else 0.0)
            if not self._open and not self._claim():
                if not self._outstanding():
                    return
                time.sleep(IDLE_POLL_S)

    # --- feeding -------------------------------------------------------------------------------

    def _admit(self) -> int:
        """Fill the engine: suspects and second tries first, then new records, claiming as needed."""
        admitted = self._submit(self._window.waiting())
        while self._window.room:
            batch = self._take(self._window.room)
            if not batch and not self._claim():
                break
            admitted += self._submit(batch)
        return admitted

    def _take(self, room: int) -> list[Prepared]:
        """New records from the open shards, the oldest shard first."""
        batch: list[Prepared] = []
        for shard in self._open.values():
            while len(batch) < room and not shard.exhausted:
                item = next(shard.source, None)
                if item is None:
                    shard.exhausted = True
                    continue
                if item.record_id in shard.seen:
                    raise SnapshotError(
                        f"Record id {item.record_id!r} occurs twice in shard {shard.lease.shard}, but not when the version "
                        "was planned: the snapshot was changed. Restore it, or pin a new version."
                    )
                shard.seen.add(item.record_id)
                if isinstance(item, Failure):
                    self._committer.add(shard.lease, item)
                else:
                    shard.unsettled += 1
                    batch.append(item)
        return batch

    def _claim(self) -> bool:
        """Lease one more shard if there is one and few enough are open."""
        if len(self._open) >= SHARDS_OPEN_MAX or time.monotonic() < self._claim_again_at:
            return False
        version, claimed_at = self.version.id, time.monotonic()
        claim = self.ledger.leases.claim
        lease = claim(version, owner=self.owner, lease_s=self.limits.lease_s, wanted=self.wanted)
        if lease is None and self.ledger.leases.reclaim_dead(version, is_dead_local_owner):
            lease = claim(version, owner=self.owner, lease_s=self.limits.lease_s, wanted=self.wanted)
        if lease is None:
            self._claim_again_at = time.monotonic() + IDLE_POLL_S / 2
            return False
        self._heartbeat.hold(lease, claimed_at=claimed_at)
        settled = self.ledger.outcomes.settled_ids(version, lease.shard)
        failed = self.ledger.outcomes.failed_attempts(version, lease.shard)
        source = self.preparer.shard(lease.shard, skip=settled, failed=failed)
        self._open[lease.shard] = _Open(lease, source, claimed_at)
        return True

    def _submit(self, batch: list[Prepared]) -> int:
        if not batch:
            return 0
        decoding = self.version.decoding
        # Entered first: if the engine dies on the way in, these records are among the suspects.
        self._window.entered(batch, time.monotonic())
        self.engine.submit(
            [
                EngineRequest(
                    request_id=one.key,
                    record_id=one.record_id,
                    attempt=one.attempt,
                    prompt_token_ids=one.prompt_token_ids,
                    output_tokens_max=decoding.output_tokens_for(one.attempt),
                )
                for one in batch
            ]
        )
        return len(batch)

    # --- judging -------------------------------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        """Turn what came out of the engine into outcomes."""
        for completion in self.engine.poll(timeout_s):
            found = self._window.left(completion.request_id)
            self._completed_at = time.monotonic()
            if found is not None:
                self._settle(found.prepared, judge(completion, found.prepared, self.model))

    def _settle(self, prepared: Prepared, outcome: Result | Failure, *, alone: bool = False) -> None:
        """Hand an outcome over; a failure with attempts left goes in again."""
        shard = self._open.get(prepared.shard)
        if shard is None:
            return  # the lease was lost meanwhile
        self._committer.add(shard.lease, outcome)
        shard.prompt_tokens += outcome.prompt_tokens
        shard.output_tokens += outcome.output_tokens
        if isinstance(outcome, Failure) and not outcome.is_final:
            retry = self._window.try_alone if alone else self._window.again
            retry(prepared.next_attempt())
        else:
            shard.unsettled -= 1

    def _enforce_deadlines(self) -> None:
        """One record too long: a failed attempt. Nothing at all for too long: a new engine."""
        now = time.monotonic()
        overdue = self._window.overdue(now, self.limits.record_deadline_s)
        silent_s = now - max(self._completed_at, self._window.oldest_submission(default=now))
        if len(self._window) > 1 and silent_s > self.limits.progress_deadline_s:
            raise EngineDied(f"no completion for {silent_s:.0f} s with {len(self._window)} records in flight")
        for one in overdue:
            prepared = one.prepared
            self.engine.abort([prepared.key])
            self._window.left(prepared.key)
            self.report.records_aborted += 1
            error = f"no answer within {self.limits.record_deadline_s:g} s"
            failure = Failure(
                record_id=prepared.record_id, attempt=prepared.attempt, reason=Reason.TIMEOUT, error=error
            )
            self._settle(prepared, failure)

    # --- shards --------------------------------------------------------------------------------

    def _finish_shards(self) -> None:
        for shard in self._open.values():
            if shard.is_done and not shard.finishing:
                shard.finishing = True
                self._committer.finish(shard.lease)

    def _handle_events(self, *, wait_s: float = 0.0) -> None:
        for event in self._committer.events(wait_s):
            self._heartbeat.drop(event.lease)
            if isinstance(event, ShardSealed):
                self.report.shards_completed += 1
                shard = self._open.pop(event.lease.shard, None)
                if shard is not None:
                    self.on_sealed(event, shard.stats())
            else:
                self._abandon(event.lease)

    def _drop_lost_leases(self) -> None:
        for lease in self._heartbeat.lost():
            self._heartbeat.drop(lease)
            self._abandon(lease)

    def _abandon(self, lease: Lease) -> None:
        """Fenced: stop the shard's requests now and write nothing more."""
        keys = self._window.drop_shard(lease.shard)
        self.engine.abort(keys)
        self.report.leases_lost += 1
        self.report.records_aborted += len(keys)
        self._open.pop(lease.shard, None)

    def _outstanding(self) -> int:
        return self.ledger.leases.outstanding(self.version.id, self.wanted)

    # --- interruptions -------------------------------------------------------------------------

    def _restart_engine(self, cause: str) -> None:
        """Start a new engine within bounds; if one record stood alone, it pays for the death."""
        self.report.engine_restarts += 1
        if self.report.engine_restarts > self.limits.restarts_max:
            raise EngineUnavailable(
                f"The engine died {self.report.engine_restarts} times in this worker (last: {cause}). The shards were "
                "handed back. Look at the engine's log, or raise engine.restarts_max in defs.yaml."
            )
        culprit = self._window.engine_died()
        if culprit is not None:
            failure = Failure(
                record_id=culprit.record_id,
                attempt=culprit.attempt,
                reason=Reason.ENGINE_KILLER,
                error=f"alone in the engine when it died ({cause.partition('. ')[0]})"[:500],
            )
            self._settle(culprit, failure, alone=True)
        self.engine.shutdown(SHUTDOWN_S)
        self.engine.start(self.limits.start_deadline_s)
        self._completed_at = time.monotonic()

    def _drain(self) -> None:
        """A preemption notice: let what is in flight finish while there is time, then hand back."""
        self.report.drained = True
        deadline = time.monotonic() + DRAIN_S
        while len(self._window) and time.monotonic() < deadline:
            try:
                self._collect(POLL_S)
            except EngineDied:
                break
        self._finish_shards()
        self._committer.flush(DRAIN_S)
        self._handle_events()

    def _hand_back(self) -> None:
        """Store what is buffered, then release what is still held: nobody waits for an expiry."""
        store_is_there = not self._committer.failed and self._committer.flush(DRAIN_S)
        for shard in self._open.values():
            self._heartbeat.drop(shard.lease)
            if store_is_there:
                self.ledger.leases.release(shard.lease)  # else the leases run out by themselves
        if store_is_there:
            self._handle_events()  # a shard that was sealed meanwhile is reported, however we leave
