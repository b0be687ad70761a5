"""The fence: a write counts only while the worker's lease is the current one.

Epoch and owner are compared in the database, in the transaction that writes. Every claim has an epoch
of its own, so a worker that was frozen, cut off or slow cannot pass for the one that came after it,
not even when both have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.errors import Fenced
from batch_assets.storage.tables import shards


def shard_row(lease: Lease) -> sa.Select[Any]:
    return sa.select(*shards.c).where(shards.c.job_version == lease.job_version, shards.c.shard == lease.shard)


def change(
    connection: sa.Connection, lease: Lease, values: Mapping[str, object], *conditions: sa.ColumnElement[bool]
) -> bool:
    """Change the shard if the lease is the current one; the fence of every transition."""
    statement = sa.update(shards).where(
        shards.c.job_version == lease.job_version,
        shards.c.shard == lease.shard,
        shards.c.epoch == lease.epoch,
        shards.c.owner == lease.owner,
        shards.c.state == "leased",
        *conditions,
    )
    return connection.execute(statement.values(values)).rowcount == 1


def hold(connection: sa.Connection, lease: Lease) -> Any:
    """Lock the shard's row until the end of the transaction, if the lease is the current one.

    Raises Fenced when it is not. From here on the epoch cannot move before the commit.
    """
    row = connection.execute(shard_row(lease).with_for_update()).first()
    if row is None:
        raise Fenced(f"Shard {lease.shard} is not in the ledger any more; writes of epoch {lease.epoch} are refused.")
    if (row.state, row.epoch, row.owner) != ("leased", lease.epoch, lease.owner):
        raise Fenced(
            f"Shard {lease.shard} is {row.state} at epoch {row.epoch}; writes of epoch {lease.epoch} are refused."
        )
    return row
