"""Who is suspected of killing engines or workers, kept durably by shard.

Written before the records on trial go into the engine: if the worker dies with them, its successor
knows who was in there. The reasoning is in `core/suspects.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.core.suspects import Groups
from batch_assets.storage.database import Database
from batch_assets.storage.fencing import hold
from batch_assets.storage.tables import shards, trials
from batch_assets.storage.upsert import insert_or_replace


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A shard's suspects as the last worker left them."""

    groups: Groups
    running: bool  # the first group was in the engine when its worker ended without notice


class Trials:
    """Suspects by shard."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, lease: Lease) -> StoredTrial | None:
        """The shard's suspects; None when nobody is suspected."""
        query = sa.select(trials.c.suspects, trials.c.running).where(
            trials.c.job_version == lease.job_version, trials.c.shard == lease.shard
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        return StoredTrial(groups=tuple(map(tuple, json.loads(row.suspects))), running=bool(row.running))

    def save(self, lease: Lease, groups: Groups, *, running: bool) -> None:
        """Replace the shard's suspects; none left ends the trial. Raises Fenced, and changes nothing.

        A trial is a way of getting on, so the count of workers lost without progress starts anew.
        """
        with self._database.write("trial") as connection:
            hold(connection, lease)
            ours = (shards.c.job_version == lease.job_version, shards.c.shard == lease.shard)
            connection.execute(sa.update(shards).where(*ours).values(recoveries=0))
            if not groups:
                connection.execute(
                    sa.delete(trials).where(trials.c.job_version == lease.job_version, trials.c.shard == lease.shard)
                )
                return
            row = {
                "job_version": lease.job_version,
                "shard": lease.shard,
                "epoch": lease.epoch,
                "suspects": json.dumps(groups),
                "running": int(running),
                "at": connection.scalar(sa.select(self._database.now())),
            }
            connection.execute(insert_or_replace(connection, trials, ("job_version", "shard")), row)
