"""A shard that a worker holds: where its records come from, and how many of them are unsettled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from batch_assets.core.leases import SUSPECT_AFTER_RECOVERIES, Lease
from batch_assets.core.outcomes import ATTEMPTS_MAX, Failure, Reason
from batch_assets.core.quoting import quoted
from batch_assets.core.suspects import ShardTrial, take_up
from batch_assets.errors import SnapshotError
from batch_assets.worker.claimer import Claimed
from batch_assets.worker.records import Prepared, RecordPreparer
from batch_assets.worker.report import ShardStats


@dataclass
class OpenShard:
    """A leased shard and what is left of it."""

    lease: Lease
    source: Iterator[Prepared | Failure]
    claimed_at: float  # monotonic seconds
    unfinished: int  # records without an outcome when it was claimed
    everyone: bool  # all its records are suspects: they run in groups, alone in the engine
    seen: set[str] = field(default_factory=set)  # ids taken from the source; at most one shard's worth
    unsettled: int = 0  # records taken from the source that have no outcome yet
    prompt_tokens: int = 0
    output_tokens: int = 0
    exhausted: bool = False
    finishing: bool = False
    trial: ShardTrial = field(default_factory=ShardTrial)  # as it stands in the ledger
    lost_alone: tuple[str, int] | None = None  # a single suspect, and how many workers were lost with it
    trouble: str | None = None  # why this worker cannot finish it

    @property
    def is_done(self) -> bool:
        return self.exhausted and self.unsettled == 0

    def take(self, room: int) -> list[Prepared | Failure]:
        """Up to `room` of the records that are left. Raises SnapshotError for an id that comes twice."""
        batch: list[Prepared | Failure] = []
        while len(batch) < room and not self.exhausted:
            item = next(self.source, None)
            if item is None:
                self.exhausted = True
            else:
                self._note(item)
                batch.append(item)
        return batch

    def _note(self, item: Prepared | Failure) -> None:
        if item.record_id in self.seen:
            raise SnapshotError(
                f"Record id {quoted(item.record_id)} occurs twice in shard {self.lease.shard}, but not when the version "
                "was planned: the snapshot was changed. Restore it, or pin a new version."
            )
        self.seen.add(item.record_id)
        self.unsettled += isinstance(item, Prepared)

    def group_max(self, window: int) -> int:
        """How many suspects to try together: half of what has killed two workers already."""
        return max(-(-min(window, self.unfinished) // 2), 1)

    def stats(self) -> ShardStats:
        return ShardStats(
            seconds=time.monotonic() - self.claimed_at,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
        )


@dataclass(frozen=True)
class Opening:
    """A claimed shard, ready to be worked on, and whom to be careful with."""

    shard: OpenShard
    groups: list[list[Prepared]]  # suspects, to be tried group by group before anything else
    failures: list[Failure]  # decided already: the last worker died of this record, or it cannot be asked


def open_shard(claimed: Claimed, preparer: RecordPreparer) -> Opening:
    """Take a shard up where the last worker has left it."""
    lease, failed = claimed.lease, dict(claimed.failed)
    taken = take_up(claimed.trial, claimed.settled)
    trial, culprit, groups = taken.trial, taken.culprit, taken.trial.groups
    failures: list[Failure] = []
    if culprit is not None:
        used = failed.get(culprit, 0)
        known = "when the worker died" if claimed.trial.died else "in all of the workers that were last lost with it"
        failures = [
            Failure(
                record_id=culprit,
                attempt=attempt,
                reason=Reason.ENGINE_KILLER,
                error=f"alone in the engine {known} (before epoch {lease.epoch})",
            )
            for attempt in range(used + 1, min(used + taken.attempts, ATTEMPTS_MAX) + 1)
        ]
        failed[culprit] = failures[-1].attempt
        if not failures[-1].is_final:
            groups = ((culprit,), *groups)
    named = {one for group in groups for one in group}
    gone = claimed.settled | {one.record_id for one in failures if one.is_final}
    shard = OpenShard(
        lease=lease,
        source=preparer.shard(lease.shard, skip=gone | named, failed=failed),
        claimed_at=claimed.claimed_at,
        unfinished=lease.records - len(claimed.settled),
        everyone=trial.everyone or lease.recoveries >= SUSPECT_AFTER_RECOVERIES,
        seen=set(named),
        lost_alone=(trial.groups[0][0], trial.losses) if trial.losses else None,
    )
    prepared: dict[str, Prepared] = {}
    if named:
        for item in preparer.shard(lease.shard, skip=gone, failed=failed, only=named):
            if isinstance(item, Failure):
                failures.append(item)
            else:
                prepared[item.record_id] = item
    shard.unsettled = len(prepared)
    found = ([prepared[one] for one in group if one in prepared] for group in groups)
    return Opening(shard, [group for group in found if group], failures)
