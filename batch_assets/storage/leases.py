"""Leases on shards: claim, renew, release, complete. One conditional statement per transition.

Why exactly one worker wins: the condition is part of the write. Of several workers that want the same
row, the database lets one write at a time, and judges the others' conditions on the row as that one
left it: the state or the epoch is no longer what they asked for, and no row changes. Whoever changes
no row is fenced and must stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.errors import Fenced, ShardTrouble
from batch_assets.storage.database import Database
from batch_assets.storage.fencing import change, shard_row
from batch_assets.storage.record_keys import storable
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import outcomes, shards, trials
from batch_assets.storage.trials import DIED

RECOVERIES_MAX = 5

_UNLEASED = {"owner": None, "claim_id": None, "lease_expires_at": None}


class Leases:
    """The shard table of all versions, as workers see it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(
        self,
        job_version: str,
        *,
        owner: str,
        lease_s: float,
        wanted: range,
        claim_id: str | None = None,
        recoveries_max: int = RECOVERIES_MAX,
    ) -> Lease | None:
        """Take the first pending shard of `wanted`; None when there is none now.

        Shards of silent owners become pending first, so that an abort leaves a suffix to be done.
        With a `claim_id`, a claim whose answer was lost can be sent again: it finds its own lease.
        """
        with self._database.write("claim") as connection:
            if claim_id is not None:
                row = connection.execute(_lease_of_claim(job_version, owner, claim_id)).first()
                if row is not None:
                    return _lease(job_version, owner, row)
            expired = shards.c.lease_expires_at < self._database.now()
            self._take_back(connection, job_version, wanted, recoveries_max, expired)
            # The row is locked when it is chosen, and one that somebody else has locked is passed over:
            # workers who claim at the same moment get different shards instead of waiting in line.
            first = (
                sa.select(shards.c.shard)
                .where(shards.c.job_version == job_version, shards.c.state == "pending", _within(wanted))
                .order_by(shards.c.shard)
                .limit(1)
                .with_for_update(skip_locked=True)
                .scalar_subquery()
            )
            statement = (
                sa.update(shards)
                .where(shards.c.job_version == job_version, shards.c.shard == first, shards.c.state == "pending")
                .values(
                    state="leased",
                    epoch=shards.c.epoch + 1,
                    owner=owner,
                    claim_id=claim_id,
                    lease_expires_at=self._database.now() + lease_s,
                    claimed_outcomes=shards.c.results + shards.c.dead_letters,
                )
                .returning(*_LEASE_COLUMNS)
            )
            row = connection.execute(statement).first()
        return None if row is None else _lease(job_version, owner, row)

    def renew(self, lease: Lease, *, lease_s: float) -> None:
        """Extend a lease that is still current and has not expired.

        Raises Fenced otherwise: an expired lease may be taken at any moment and is not revived.
        """
        now = self._database.now()
        with self._database.write("renew") as connection:
            if change(connection, lease, {"lease_expires_at": now + lease_s}, shards.c.lease_expires_at >= now):
                return
        raise Fenced(f"Lease on shard {lease.shard} (epoch {lease.epoch}) could not be renewed: it is over.")

    def release(self, lease: Lease, *, trouble: str | None = None, recoveries_max: int = RECOVERIES_MAX) -> bool:
        """Hand the shard back at once; costs no attempt. False when it was not ours any more.

        `trouble` says that the worker could not get on with this shard. When that has happened too often
        without any progress, the shard waits for an operator.
        """
        values: dict[str, Any] = {
            "state": "pending",
            "recoveries": sa.case((_progress(), 0), else_=shards.c.recoveries),
        }
        if trouble is not None:
            values = _given_up(recoveries_max) | {"trouble": storable(trouble)}
        with self._database.write("release") as connection:
            released = change(connection, lease, values | _UNLEASED)
            if released:
                # With notice: whoever was on trial is not to blame.
                ours = (trials.c.job_version == lease.job_version, trials.c.shard == lease.shard)
                connection.execute(sa.update(trials).where(*ours).values(running=0))
        return released

    def complete(self, lease: Lease, sealed: SealedFile) -> None:
        """Record the sealed file and end the shard; for good.

        Raises Fenced when the epoch is not current, and ShardTrouble when the shard's outcomes are
        not exactly its records (counted here, in the same statement, not believed).
        """
        ours = (outcomes.c.job_version == lease.job_version, outcomes.c.shard == lease.shard)
        stored = sa.select(sa.func.count()).select_from(outcomes).where(*ours).scalar_subquery()
        values = {
            "state": "completed",
            **_UNLEASED,
            "recoveries": 0,
            "trouble": None,
            "sealed_key": sealed.key,
            "sealed_sha256": sealed.sha256,
            "sealed_bytes": sealed.size,
            "completed_by": lease.owner,
            "completed_at": self._database.now(),
        }
        whole = (
            shards.c.results == sealed.rows,
            shards.c.results + shards.c.dead_letters == shards.c.records,
            stored == shards.c.records,
        )
        with self._database.write("complete") as connection:
            if change(connection, lease, values, *whole):
                connection.execute(
                    sa.delete(trials).where(trials.c.job_version == lease.job_version, trials.c.shard == lease.shard)
                )
                return
            row = connection.execute(shard_row(lease)).first()
        if row is None:
            raise Fenced(f"Shard {lease.shard} is not in the ledger any more.")
        if row.state == "completed" and row.sealed_sha256 == sealed.sha256 and row.epoch == lease.epoch:
            return  # our own completion, whose answer was lost
        if row.state != "leased" or row.epoch != lease.epoch or row.owner != lease.owner:
            raise Fenced(f"Shard {lease.shard} belongs to epoch {row.epoch} ({row.state}), not to {lease.epoch}.")
        raise ShardTrouble(
            f"Shard {lease.shard} cannot be completed: {row.results} results and {row.dead_letters} dead letters "
            f"for {row.records} records, {sealed.rows} rows in the sealed file."
        )

    def reclaim_dead(
        self,
        job_version: str,
        is_dead: Callable[[str], bool],
        *,
        has_left: Callable[[str], bool] = lambda _owner: False,
        recoveries_max: int = RECOVERIES_MAX,
    ) -> int:
        """Take back the leases of owners that `is_dead` knows to be gone; returns how many.

        Of those, `has_left` tells who went in good order but could not reach the ledger to say so: that
        is as good as a release. Safe even when either errs: the shard is not leased any more, so its owner
        is fenced.
        """
        query = sa.select(shards.c.owner).where(shards.c.job_version == job_version, shards.c.state == "leased")
        with self._database.read() as connection:
            dead = [owner for owner in connection.scalars(query.distinct()) if is_dead(owner)]
        left = [owner for owner in dead if has_left(owner)]
        if not dead:
            return 0
        with self._database.write("reclaim") as connection:
            released = self._take_back(connection, job_version, None, None, shards.c.owner.in_(left), running=0)
            lost = self._take_back(
                connection, job_version, None, recoveries_max, shards.c.owner.in_(dead), running=DIED
            )
        return released + lost

    def outstanding(self, job_version: str, wanted: range) -> int:
        """How many of the wanted shards are still to be completed by some worker."""
        query = sa.select(sa.func.count()).where(
            shards.c.job_version == job_version, _within(wanted), shards.c.state.in_(("pending", "leased"))
        )
        with self._database.read() as connection:
            return int(connection.scalar(query) or 0)

    @staticmethod
    def _take_back(
        connection: sa.Connection,
        job_version: str,
        wanted: range | None,
        recoveries_max: int | None,
        condition: sa.ColumnElement[bool],
        running: int | None = None,
    ) -> int:
        """Reclaim leased shards that meet the condition: their workers ended without a release.

        Without `recoveries_max` that is not held against the shard. `running` is what is known of the
        worker that had a group on trial in its engine. A row that its owner is writing at this moment is
        passed over: the owner is alive.
        """
        lost = sa.select(shards.c.shard).where(shards.c.job_version == job_version, shards.c.state == "leased")
        lost = lost.where(condition) if wanted is None else lost.where(condition, _within(wanted))
        told = (
            sa.literal("worker ") + shards.c.owner + " (epoch " + sa.cast(shards.c.epoch, sa.Text) + ") was lost "
            "without notice"
        )
        values = {"state": "pending"} if recoveries_max is None else _given_up(recoveries_max) | {"trouble": told}
        statement = (
            sa.update(shards)
            .where(
                shards.c.job_version == job_version,
                shards.c.shard.in_(lost.with_for_update(skip_locked=True)),
                shards.c.state == "leased",
                condition,
            )
            .values(values | _UNLEASED)
            .returning(shards.c.shard)
        )
        taken = list(connection.scalars(statement))
        if taken and running is not None:
            on_trial = sa.update(trials).where(
                trials.c.job_version == job_version, trials.c.shard.in_(taken), trials.c.running == 1
            )
            connection.execute(on_trial.values(running=running))
        return len(taken)


def _given_up(recoveries_max: int) -> dict[str, Any]:
    """A worker has ended here without finishing: again at the same point, or has it stored something?"""
    recoveries = sa.case((_progress(), 1), else_=shards.c.recoveries + 1)
    return {
        "recoveries": recoveries,
        "state": sa.case((recoveries >= recoveries_max, "needs_operator"), else_="pending"),
    }


def _progress() -> sa.ColumnElement[bool]:
    """Something was stored under this claim."""
    return shards.c.results + shards.c.dead_letters > shards.c.claimed_outcomes


def _within(wanted: range) -> sa.ColumnElement[bool]:
    return shards.c.shard.between(wanted.start, wanted.stop - 1)


_LEASE_COLUMNS = (shards.c.shard, shards.c.epoch, shards.c.records, shards.c.recoveries, shards.c.reopened)


def _lease(job_version: str, owner: str, row: Any) -> Lease:
    return Lease(job_version=job_version, owner=owner, **row._mapping)


def _lease_of_claim(job_version: str, owner: str, claim_id: str) -> sa.Select[Any]:
    return sa.select(*_LEASE_COLUMNS).where(
        shards.c.job_version == job_version,
        shards.c.state == "leased",
        shards.c.claim_id == claim_id,
        shards.c.owner == owner,
    )
