"""The worker: claim → feed → flush → seal → complete, in one loop over a warm engine.

The next shard is claimed while the current one drains, so the engine never waits for a shard's
tail. All claims happen in the claimer's thread, all writes of outcomes in the committer's, all
renewals in the heartbeat's; this thread only feeds the engine and judges what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from pydantic import BaseModel

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.version import JobVersion
from batch_assets.core.waste import Cause
from batch_assets.engine.protocol import Engine, EngineInfo, EngineRequest
from batch_assets.errors import EngineDied, EngineUnavailable, StoreError
from batch_assets.failpoints import failpoint
from batch_assets.storage.ledger import Ledger
from batch_assets.worker.claimer import Claimed, Claimer, NothingLeft, call_quietly
from batch_assets.worker.committer import Committer
from batch_assets.worker.engine_keeper import EngineKeeper
from batch_assets.worker.events import ShardFailed, ShardSealed
from batch_assets.worker.heartbeat import Heartbeat
from batch_assets.worker.open_shards import OpenShard, open_shard
from batch_assets.worker.orphans import EngineProcesses
from batch_assets.worker.records import Prepared, RecordPreparer, judge, tokens_of
from batch_assets.worker.report import ShardStats, WorkerLimits, WorkerReport
from batch_assets.worker.suspicion import Suspicion
from batch_assets.worker.watchdog import Watchdog
from batch_assets.worker.window import Window

POLL_S = 0.2
SHARDS_OPEN_MAX = 2  # the one that drains and the one that fills the room it leaves


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
    engine_processes: EngineProcesses
    report: WorkerReport = field(default_factory=WorkerReport)

    def run(self) -> WorkerReport:
        """Work; returns what was done. The engine is shut down on every way out."""
        if not self.ledger.leases.outstanding(self.version.id, self.wanted):
            return self.report
        self._keeper = EngineKeeper(self.engine, self.engine_processes, self.owner, self.limits, self.report)
        try:
            info = self._keeper.start()
            self._window = Window(info.in_flight_max)
            self._open: dict[int, OpenShard] = {}
            self._watchdog = Watchdog(self.limits)
            with ExitStack() as threads:
                limits, leases = self.limits, self.ledger.leases
                self._heartbeat = threads.enter_context(
                    Heartbeat(leases, lease_s=limits.lease_s, renew_every_s=limits.renew_every_s)
                )
                self._committer = threads.enter_context(self.committer_for(info))
                self._suspicion = Suspicion(self._window, self.ledger.trials, self._committer, self._lose)
                self._claimer = Claimer(
                    self.ledger,
                    self.version.id,
                    self.owner,
                    self.wanted,
                    limits,
                    self._heartbeat,
                    self.engine_processes,
                    self._committer.news,
                )
                try:
                    with self._claimer:
                        self._work()
                except Exception as error:
                    self._blame_open_shards(error)
                    raise
                finally:
                    self._hand_back()
            totals = self._committer.totals
            self.report.results, self.report.dead_letters = totals.stored, totals.dead_lettered
            self.report.duplicates_discarded = totals.discarded
        finally:
            self._keeper.shut_down()
        return self.report

    def _work(self) -> None:
        while True:
            if self.should_stop():
                self._drain()
                return
            self._drop_lost_leases()
            try:
                admitted = self._admit()
                self._collect(POLL_S if len(self._window) else 0.0)
                self._enforce_deadlines()
            except EngineDied as death:
                admitted = 1
                self._restart_engine(str(death))
            self._finish_shards()
            if not self._open:
                self._claimer.ask()
            if not admitted and not len(self._window):
                # With nothing in the engine and nothing to put in, what is left is the other threads' work.
                self._committer.news.wait(POLL_S)
                self._committer.news.clear()
            self._handle_events()
            if self._take_claim() and not self._open:
                return

    # --- feeding -------------------------------------------------------------------------------

    def _admit(self) -> int:
        """Fill the engine: suspects and second tries first, then new records, asking for shards as needed."""
        if self._window.settle_trial():
            self._suspicion.save(list(self._open.values()))
        if self._window.on_trial:
            return self._submit(self._suspicion.next_group(self._open))
        admitted = self._submit(self._window.waiting())
        if self._committer.is_behind:
            return admitted  # the store is away; what is in flight is enough to remember
        admitted += self._submit(self._take(self._window.room))
        if self._window.room and len(self._open) < SHARDS_OPEN_MAX and not self._window.on_trial:
            self._claimer.ask()
        return admitted

    def _take(self, room: int) -> list[Prepared]:
        """New records from the open shards, the oldest shard first."""
        batch: list[Prepared] = []
        for shard in list(self._open.values()):
            if shard.everyone and not shard.exhausted:
                # Its records run in groups, alone: the engine has to be empty first, and stays closed for others.
                if not batch and self._window.is_idle:
                    self._window.suspect([self._take_from(shard, shard.group_max(self._window.size))])
                break
            batch += self._take_from(shard, room - len(batch))
        return batch

    def _take_from(self, shard: OpenShard, room: int) -> list[Prepared]:
        """Records to ask about; those that cannot be asked about are settled here."""
        batch: list[Prepared] = []
        while len(batch) < room and not shard.exhausted:
            for item in shard.take(room - len(batch)):
                if isinstance(item, Failure):
                    self._committer.add(shard.lease, item)
                else:
                    batch.append(item)
        return batch

    def _take_claim(self) -> bool:
        """Open the shard that was asked for, if it has come; True when there is none left to ask for."""
        found = self._claimer.answer()
        if isinstance(found, NothingLeft):
            return True
        if found is not None and self._heartbeat.holds(found.lease):
            self._take_up(found)
        return False

    def _take_up(self, claimed: Claimed) -> None:
        if (older := self._open.get(claimed.lease.shard)) is not None:
            # Our own lease had run out, and this claim has taken the shard back: what is in flight is not its.
            self._heartbeat.drop(older.lease)
            self._abandon(older.lease)
        opening = open_shard(claimed, self.preparer)
        shard = self._open[claimed.lease.shard] = opening.shard
        self._window.suspect(opening.groups)
        self._suspicion.save_shard(shard, known=claimed.trial)
        self._suspicion.add_charges(shard, opening.failures)

    def _submit(self, batch: list[Prepared]) -> int:
        if not batch:
            return 0
        if self._watchdog.distrusts_engine_for(batch):
            self._replace_silent_engine()
        decoding = self.version.decoding
        # Entered first: if the engine dies on the way in, these records are among the suspects.
        self._window.entered(batch, time.monotonic())
        failpoint("engine.before_submit")
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
        self._watchdog.looks()
        for completion in self.engine.poll(timeout_s):
            found = self._window.left(completion.request_id)
            self._watchdog.answered()
            if found is not None:
                self._settle(found.prepared, judge(completion, found.prepared, self.model))

    def _settle(self, prepared: Prepared, outcome: Result | Failure) -> None:
        """Hand an outcome over; a failure with attempts left goes in again."""
        shard = self._open.get(prepared.shard)
        if shard is None:
            return  # the lease was lost meanwhile
        self._committer.add(shard.lease, outcome)
        shard.prompt_tokens += outcome.prompt_tokens
        shard.output_tokens += outcome.output_tokens
        if isinstance(outcome, Failure) and not outcome.is_final:
            # Whoever may have silenced the engine is tried by itself.
            retry = self._window.try_alone if self._watchdog.suspects(prepared) else self._window.again
            retry(prepared.next_attempt())
        else:
            shard.unsettled -= 1

    def _enforce_deadlines(self) -> None:
        """One record too long: a failed attempt. Nothing at all for too long: a new engine."""
        self._watchdog.check_progress(self._window)
        for one in self._watchdog.overdue(self._window):
            prepared = one.prepared
            self.engine.abort([prepared.key])
            self._window.left(prepared.key)
            self.report.records_aborted += 1
            failure = Failure(
                record_id=prepared.record_id,
                attempt=prepared.attempt,
                reason=Reason.TIMEOUT,
                error=f"no answer within {self.limits.record_deadline_s:g} s",
                prompt_tokens=len(prepared.prompt_token_ids),
            )
            self._watchdog.timed_out(one)
            self._settle(prepared, failure)

    # --- shards --------------------------------------------------------------------------------

    def _finish_shards(self) -> None:
        for shard in self._open.values():
            if shard.is_done and not shard.finishing:
                shard.finishing = True
                self._committer.finish(shard.lease)

    def _handle_events(self) -> None:
        for event in self._committer.events():
            shard = self._open.get(event.lease.shard)
            self._heartbeat.drop(event.lease)
            if isinstance(event, ShardSealed):
                self.report.shards_completed += 1
                if shard is not None:
                    del self._open[event.lease.shard]
                    self._claimer.look_again()
                    self.on_sealed(event, shard.stats())
            elif isinstance(event, ShardFailed):
                if shard is not None:
                    shard.trouble = event.reason
                    self._release(shard)
            else:
                self._abandon(event.lease)

    def _drop_lost_leases(self) -> None:
        for lease in self._heartbeat.lost():
            self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        self._heartbeat.drop(lease)
        self._abandon(lease)

    def _abandon(self, lease: Lease) -> None:
        """Fenced: stop the shard's requests now and write nothing more."""
        shard = self._open.get(lease.shard)
        if shard is None or shard.lease.epoch != lease.epoch:
            return
        dropped = self._window.drop_shard(lease.shard)
        self.engine.abort([one.key for one in dropped])
        self._committer.abandon(lease, on_trial=shard.trial.running and len(shard.trial.groups[0]) == 1)
        self._committer.waste(lease, Cause.LOST_LEASE, tokens_of(dropped))
        self.report.leases_lost += 1
        self.report.records_aborted += len(dropped)
        del self._open[lease.shard]

    def _release(self, shard: OpenShard) -> None:
        """Hand a shard back; with what stood in the way, if anything did."""
        del self._open[shard.lease.shard]
        released = call_quietly(
            lambda: self.ledger.leases.release(
                shard.lease, trouble=shard.trouble, recoveries_max=self.limits.recoveries_max
            )
        )
        if not released:
            self.engine_processes.leave(self.owner)  # the lease runs out; whoever comes next here knows why

    # --- interruptions -------------------------------------------------------------------------

    def _restart_engine(self, cause: str) -> None:
        """Start a new engine within bounds; if one record stood alone, it pays for the death."""
        self.report.engine_restarts += 1
        for shard in self._open.values():
            victims = self._window.in_flight(shard.lease.shard)
            self._committer.waste(shard.lease, Cause.ENGINE_DEATH, tokens_of(victims))
            if victims and self._keeper.is_worn_out:
                shard.trouble = f"the engine died {self.report.engine_restarts} times in one worker (last: {cause})"
        culprit = self._window.engine_died()
        if culprit is not None and culprit.shard in self._open:
            told = f"alone in the engine when it died ({cause.partition('. ')[0]})"
            self._suspicion.charge(self._open[culprit.shard], culprit, told)
        self._suspicion.save(list(self._open.values()))
        self._keeper.replace(cause)
        self._watchdog.answered()

    def _replace_silent_engine(self) -> None:
        """Nothing has come out since a record timed out: it may hang, and others must not pay for that."""
        self.report.engine_restarts += 1
        for one in self._window.in_flight():
            self._window.left(one.key)
            self._window.again(one)
        self._keeper.replace("no answer to anything since a record has timed out")
        self._watchdog.answered()

    def _drain(self) -> None:
        """A preemption notice: let what is in flight finish while there is time, then hand back."""
        self.report.drained = True
        deadline = time.monotonic() + self.limits.drain_s
        while len(self._window) and time.monotonic() < deadline:
            self._drop_lost_leases()
            try:
                self._collect(POLL_S)
            except EngineDied:
                break
        for shard in self._open.values():
            left = self._window.in_flight(shard.lease.shard)
            self._committer.waste(shard.lease, Cause.PREEMPTED, tokens_of(left))
        self._finish_shards()
        self._committer.flush(self.limits.drain_s)
        self._handle_events()

    def _blame_open_shards(self, error: Exception) -> None:
        """An error that is nobody else's fault may be a shard's: it must not come back for ever."""
        if isinstance(error, EngineUnavailable | StoreError):
            return
        for shard in self._open.values():
            shard.trouble = shard.trouble or f"{type(error).__name__}: {error}"

    def _hand_back(self) -> None:
        """Store what is buffered, then release what is still held: nobody waits for an expiry."""
        store_is_there = True
        try:
            if not self._committer.failed:  # else what it had in hand is done again; the ledger may be well
                store_is_there = self._committer.flush(self.limits.drain_s)
        finally:
            self._release_all(store_is_there=store_is_there)

    def _release_all(self, *, store_is_there: bool) -> None:
        if store_is_there and not self._committer.failed:
            call_quietly(self._handle_events)  # a shard that was sealed meanwhile is reported, however we leave
        for shard in list(self._open.values()):
            self._heartbeat.drop(shard.lease)
            if store_is_there:
                self._release(shard)
        if not store_is_there:
            self.engine_processes.leave(self.owner)
        for lease in self._claimer.leftovers():
            self._heartbeat.drop(lease)
            if store_is_there:
                call_quietly(lambda lease=lease: self.ledger.leases.release(lease))  # type: ignore[misc]
