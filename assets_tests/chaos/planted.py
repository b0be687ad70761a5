"""Bugs to be planted into workers: the campaign must find each of them.

They are what a careless hand would write. A campaign that stays green with one of them sees nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from batch_assets.core.suspects import ShardTrial
from batch_assets.storage import fencing, leases, outcomes, trials
from batch_assets.storage.outcomes import Outcomes
from batch_assets.storage.sealed import Sealer
from batch_assets.worker import heartbeat
from batch_assets.worker.committer import Committer


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    """Whoever writes is believed, and no worker notices that its lease is over."""

    def hold(connection: sa.Connection, lease: Any) -> Any:
        return connection.execute(fencing.shard_row(lease).with_for_update()).one()

    for module in (outcomes, trials):
        patch.setattr(module, "hold", hold)
    patch.setattr(heartbeat.Heartbeat, "lost", lambda _self: [])
    patch.setattr(leases.Leases, "renew", lambda _self, _lease, *, lease_s: None)


def _forgets_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    """The next worker asks for every record of the shard again."""
    patch.setattr(Outcomes, "settled_ids", lambda _self, _version, _shard: set())


def _leaves_without_flushing(patch: pytest.MonkeyPatch) -> None:
    """A worker that is told to go hands its shards back, but not what it has in hand."""
    patch.setattr(Committer, "flush", lambda _self, _deadline_s: True)


def _charges_the_interrupted(patch: pytest.MonkeyPatch) -> None:
    """Whoever was in the engine when a worker ended is taken for the culprit."""
    real = trials.Trials.of

    def of(self: trials.Trials, lease: Any) -> ShardTrial:
        if lease.epoch > 1:
            with self._database.read() as connection:
                done = sa.select(sa.func.count()).select_from(outcomes.outcomes)
                count = connection.scalar(done.where(outcomes.outcomes.c.shard == lease.shard)) or 0
            first = lease.shard * lease.records + count
            return ShardTrial(groups=((f"R-{first:05d}",),), running=True, died=True)
        return real(self, lease)

    patch.setattr(trials.Trials, "of", of)


def _seals_too_early(patch: pytest.MonkeyPatch) -> None:
    """The last row is missing in the sealed file."""
    real = Sealer._encode

    def encode(self: Sealer, shard: int, results: list[Any]) -> bytes:
        return real(self, shard, results[:-1])

    patch.setattr(Sealer, "_encode", encode)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no fence": _no_fence,
    "forgets what is stored": _forgets_what_is_stored,
    "leaves without flushing": _leaves_without_flushing,
    "charges the interrupted": _charges_the_interrupted,
    "seals too early": _seals_too_early,
}


def plant(name: str | None) -> None:
    """Put the bug into this process."""
    if name is not None:
        BUGS[name](pytest.MonkeyPatch())
