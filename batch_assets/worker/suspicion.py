"""Tries suspects group by group, and writes down who is on trial before a group goes into the engine.

If the engine dies, the group is halved at once; if the worker dies, its successor reads what was
written and does the same (`core/suspects.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason
from batch_assets.core.suspects import ShardTrial
from batch_assets.errors import Fenced
from batch_assets.storage.trials import Trials
from batch_assets.worker.committer import Committer
from batch_assets.worker.open_shards import OpenShard
from batch_assets.worker.patience import Patience
from batch_assets.worker.records import Prepared
from batch_assets.worker.window import Window

CHARGE_WAIT_S = 0.2


def _nothing_to_wait_for() -> threading.Event:
    done = threading.Event()
    done.set()
    return done


@dataclass
class Suspicion:
    """The trials of a worker's open shards. `on_fenced` is told of a lease that turned out to be over."""

    window: Window
    trials: Trials
    committer: Committer
    on_fenced: Callable[[Lease], None]
    _charges_stored: threading.Event = field(default_factory=_nothing_to_wait_for, init=False)

    def next_group(self, open_shards: dict[int, OpenShard]) -> list[Prepared]:
        """The group to put into the engine now; that it goes in is written down."""
        group = self.window.next_group()
        if not group or not self._charges_stored.wait(CHARGE_WAIT_S):
            return []  # the last attempt has to be remembered before the next one, which may end this process
        self.window.run_group()
        self.save(list(open_shards.values()), running={one.shard for one in group})
        return [one for one in group if one.shard in open_shards]

    def save(self, open_shards: Iterable[OpenShard], *, running: Collection[int] = ()) -> None:
        """Keep each shard's suspects for whoever takes over."""
        for shard in open_shards:
            self.save_shard(shard, known=shard.trial, running=shard.lease.shard in running)

    def save_shard(self, shard: OpenShard, *, known: ShardTrial, running: bool = False) -> None:
        """Write a shard's suspects, if they are not what is `known` already."""
        everyone = shard.everyone and not shard.is_done
        groups = self.window.groups_of(shard.lease.shard)
        alone, losses = shard.lost_alone or ("", 0)
        trial = ShardTrial(
            groups=groups,
            everyone=everyone,
            running=running,
            losses=losses if groups and groups[0] == (alone,) else 0,
        )
        if trial == known:
            return
        try:
            Patience("suspects", self.committer.given_up).until_done(lambda: self.trials.save(shard.lease, trial))
            shard.trial = trial
        except Fenced:
            self.on_fenced(shard.lease)

    def charge(self, shard: OpenShard, culprit: Prepared, error: str) -> None:
        """An attempt for the record that stood alone; with attempts left it is tried alone again."""
        failure = Failure(
            record_id=culprit.record_id,
            attempt=culprit.attempt,
            reason=Reason.ENGINE_KILLER,
            error=error[:500],
            prompt_tokens=len(culprit.prompt_token_ids),
        )
        if failure.is_final:
            shard.unsettled -= 1
        else:
            self.window.try_alone(culprit.next_attempt())
        self.add_charges(shard, [failure])

    def add_charges(self, shard: OpenShard, failures: Collection[Failure]) -> None:
        """Hand failures over; no further group runs before they are stored."""
        for failure in failures:
            self.committer.add(shard.lease, failure)
        if failures:
            self._charges_stored = self.committer.flush_soon()
