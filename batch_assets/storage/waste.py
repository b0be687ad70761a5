"""Work that ended in no stored result, by cause.

A row belongs to one lease and one cause and holds that lease's total so far: writing it again, after
a lost answer or with a higher total, replaces it. It needs no fence: it is nobody's result.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.core.waste import Wasted
from batch_assets.storage.database import Database
from batch_assets.storage.tables import waste
from batch_assets.storage.upsert import insert_or_replace


class WasteBook:
    """Waste of all versions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, lease: Lease, totals: Mapping[str, Wasted]) -> None:
        """Set the totals of a lease, by cause."""
        with self._database.write("waste") as connection:
            statement = insert_or_replace(connection, waste, ("job_version", "shard", "epoch", "cause"))
            for cause, total in totals.items():
                row = {"job_version": lease.job_version, "shard": lease.shard, "epoch": lease.epoch, "cause": cause}
                connection.execute(statement, {**row, **vars(total)})

    def of(self, job_version: str) -> dict[str, Wasted]:
        """A version's waste by cause, the most records first."""
        columns = [
            sa.cast(sa.func.sum(column), sa.BigInteger)
            for column in (waste.c.records, waste.c.prompt_tokens, waste.c.output_tokens)
        ]
        query = sa.select(waste.c.cause, *columns).where(waste.c.job_version == job_version).group_by(waste.c.cause)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(columns[0].desc(), waste.c.cause))
            return {row[0]: Wasted(*row[1:]) for row in rows}
