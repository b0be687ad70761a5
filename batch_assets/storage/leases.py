"""Leases on shards: claim, renew, release, complete. One conditional statement per transition.

The condition is part of the write, so two workers that race are ordered by the database and
exactly one finds the row as it expects it. Whoever is refused is fenced and must stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.errors import Fenced, StoreError
from batch_assets.storage.database import Database
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import outcomes, shards


class Leases:
    """The shard table of all versions, as workers see it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, job_version: str, *, owner: str, lease_s: float, wanted: range) -> Lease | None:
        """Take the first shard of `wanted` that nobody holds; None when there is none now.

        Shards lost by a silent owner go first, then pending ones in order, so that an abort leaves
        a suffix to be done. The inner choice and the update are one statement under the
        database's write lock: of several workers that would choose the same shard one gets it and
        the others choose again from the state after it.
        """
        now = self._database.now()
        ours = [shards.c.job_version == job_version, shards.c.shard.between(wanted.start, wanted.stop - 1)]
        expired = (
            sa.select(sa.func.min(shards.c.shard))
            .where(*ours, shards.c.state == "leased", shards.c.lease_expires_at < now)
            .scalar_subquery()
        )
        pending = sa.select(sa.func.min(shards.c.shard)).where(*ours, shards.c.state == "pending").scalar_subquery()
        statement = (
            sa.update(shards)
            .where(shards.c.job_version == job_version, shards.c.shard == sa.func.coalesce(expired, pending))
            .values(state="leased", epoch=shards.c.epoch + 1, owner=owner, lease_expires_at=now + lease_s)
            .returning(shards.c.shard, shards.c.epoch, shards.c.records)
        )
        with self._database.write() as connection:
            row = connection.execute(statement).first()
        if row is None:
            return None
        return Lease(job_version=job_version, shard=row.shard, epoch=row.epoch, owner=owner, records=row.records)

    def renew(self, lease: Lease, *, lease_s: float) -> None:
        """Extend a lease that is still current and has not expired.

        Raises Fenced otherwise: an expired lease may be taken at any moment and is not revived.
        """
        now = self._database.now()
        renewed = self._change(
            lease,
            {"lease_expires_at": now + lease_s},
            shards.c.lease_expires_at >= now,
        )
        if not renewed:
            raise Fenced(f"Lease on shard {lease.shard} (epoch {lease.epoch}) could not be renewed: it is over.")

    def release(self, lease: Lease) -> bool:
        """Hand the shard back at once; costs no attempt. False when it was not ours any more."""
        return self._change(lease, {"state": "pending", "owner": None, "lease_expires_at": None})

    def complete(self, lease: Lease, sealed: SealedFile) -> None:
        """Record the sealed file and end the shard; for good.

        Raises Fenced when the epoch is not current, and StoreError when the shard's outcomes are
        not exactly its records (counted here, in the same transaction, not believed).
        """
        stored = (
            sa.select(sa.func.count())
            .select_from(outcomes)
            .where(outcomes.c.job_version == lease.job_version, outcomes.c.shard == lease.shard)
            .scalar_subquery()
        )
        values = {
            "state": "completed",
            "owner": None,
            "lease_expires_at": None,
            "sealed_key": sealed.key,
            "sealed_sha256": sealed.sha256,
            "sealed_bytes": sealed.size,
            "completed_by": lease.owner,
            "completed_at": self._database.now(),
        }
        whole = sa.and_(
            shards.c.results == sealed.rows,
            shards.c.results + shards.c.dead_letters == shards.c.records,
            stored == shards.c.records,
        )
        if self._change(lease, values, whole):
            return
        with self._database.read() as connection:
            row = connection.execute(_shard(lease)).one()
        if row.state == "completed" and row.sealed_sha256 == sealed.sha256 and row.epoch == lease.epoch:
            return  # our own completion, whose answer was lost
        if row.state != "leased" or row.epoch != lease.epoch:
            raise Fenced(f"Shard {lease.shard} belongs to epoch {row.epoch} ({row.state}), not to {lease.epoch}.")
        raise StoreError(
            f"Shard {lease.shard} cannot be completed: {row.results} results and {row.dead_letters} dead letters "
            f"for {row.records} records, {sealed.rows} rows in the sealed file."
        )

    def release_dead_owners(self, job_version: str, is_dead: Callable[[str], bool]) -> int:
        """Take back the leases of owners that `is_dead` knows to be gone; returns how many.

        Safe even when `is_dead` errs: the epoch moves with the next claim, and the owner is fenced.
        """
        query = sa.select(shards.c.shard, shards.c.epoch, shards.c.owner, shards.c.records).where(
            shards.c.job_version == job_version, shards.c.state == "leased"
        )
        with self._database.read() as connection:
            held = connection.execute(query).all()
        lost = [row for row in held if is_dead(row.owner)]
        return sum(
            self.release(
                Lease(job_version=job_version, shard=row.shard, epoch=row.epoch, owner=row.owner, records=row.records)
            )
            for row in lost
        )

    def outstanding(self, job_version: str, wanted: range) -> int:
        """How many of the wanted shards are still to be completed by somebody."""
        query = sa.select(sa.func.count()).where(
            shards.c.job_version == job_version,
            shards.c.shard.between(wanted.start, wanted.stop - 1),
            shards.c.state.in_(("pending", "leased")),
        )
        with self._database.read() as connection:
            return int(connection.scalar(query) or 0)

    def _change(self, lease: Lease, values: Mapping[str, object], *conditions: sa.ColumnElement[bool]) -> bool:
        statement = sa.update(shards).where(
            shards.c.job_version == lease.job_version,
            shards.c.shard == lease.shard,
            shards.c.epoch == lease.epoch,
            shards.c.owner == lease.owner,
            shards.c.state == "leased",
            *conditions,
        )
        with self._database.write() as connection:
            return connection.execute(statement.values(values)).rowcount == 1


def _shard(lease: Lease) -> sa.Select[tuple[object, ...]]:
    columns: Sequence[sa.Column[object]] = list(shards.c)
    return sa.select(*columns).where(shards.c.job_version == lease.job_version, shards.c.shard == lease.shard)
