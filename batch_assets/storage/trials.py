"""Who is suspected of killing engines or workers, kept durably by shard.

Written before the records on trial go into the engine: if the worker dies with them, its successor
knows who was in there. The reasoning is in `core/suspects.py`.
"""

from __future__ import annotations

import json

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.core.suspects import ShardTrial
from batch_assets.storage.database import Database
from batch_assets.storage.fencing import hold
from batch_assets.storage.tables import shards, trials
from batch_assets.storage.upsert import insert_or_replace

DIED = 2  # in `running`: the process of the worker that had the group in its engine is gone


class Trials:
    """Suspects by shard."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, lease: Lease) -> ShardTrial:
        """The shard's suspects as the last worker left them."""
        query = sa.select(trials.c.suspects, trials.c.everyone, trials.c.running, trials.c.losses).where(*_of(lease))
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None:
            return ShardTrial()
        groups = tuple(map(tuple, json.loads(row.suspects)))
        return ShardTrial(
            groups=groups,
            everyone=bool(row.everyone),
            running=row.running > 0,
            died=row.running == DIED,
            losses=row.losses,
        )

    def save(self, lease: Lease, trial: ShardTrial) -> None:
        """Replace the shard's suspects. Raises Fenced, and changes nothing, when the lease is over."""
        with self._database.write("trial") as connection:
            hold(connection, lease)
            if not trial:
                connection.execute(sa.delete(trials).where(*_of(lease)))
                return
            if trial.running:
                # Trying a group is a way of getting on: workers lost from here on are counted anew.
                ours = (shards.c.job_version == lease.job_version, shards.c.shard == lease.shard)
                connection.execute(sa.update(shards).where(*ours).values(recoveries=0))
            row = {
                "job_version": lease.job_version,
                "shard": lease.shard,
                "epoch": lease.epoch,
                "suspects": json.dumps(trial.groups),
                "everyone": int(trial.everyone),
                "running": int(trial.running),
                "losses": trial.losses,
                "at": connection.scalar(sa.select(self._database.now())),
            }
            connection.execute(insert_or_replace(connection, trials, ("job_version", "shard")), row)

    def seen_alive(self, lease: Lease) -> None:
        """A worker that lost its lease with a single record on trial is alive: it was not the record's doing."""
        with self._database.write("seen_alive") as connection:
            ours = sa.update(trials).where(*_of(lease))
            # While nobody has claimed the shard since, what was written of the trial is still this worker's.
            epoch = sa.select(shards.c.epoch).where(
                shards.c.job_version == lease.job_version, shards.c.shard == lease.shard
            )
            not_taken_up = ours.where(epoch.scalar_subquery() == lease.epoch, trials.c.running == 1).values(running=0)
            if connection.execute(not_taken_up).rowcount == 0:
                connection.execute(ours.where(trials.c.losses > 0).values(losses=trials.c.losses - 1))


def _of(lease: Lease) -> tuple[sa.ColumnElement[bool], ...]:
    return (trials.c.job_version == lease.job_version, trials.c.shard == lease.shard)
