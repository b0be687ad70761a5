"""Brings a ledger's tables to the shape that this code needs, by versioned migrations.

A ledger that is up to date costs one read and needs no right to change tables. Several processes may
open an old one at once: one migrates, the others wait and find it done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from batch_assets.errors import VersionError

HEAD = "0003"
# Ledgers of release 0.1.0 were made without migrations; they stand where the first one leads.
WITHOUT_MIGRATIONS = "0001"

_LOCK = 7_205_759_403  # any number, the same in all processes: one migration at a time


class _Migrate:
    """The two questions a database asks when it is opened."""

    def is_current(self, connection: sa.Connection) -> bool:
        """Whether the tables are as this code needs them. Raises VersionError when they are newer."""
        found = self._revision(connection)
        if found is not None and found > HEAD:
            raise VersionError(
                f"The ledger was made by a newer release of Batch Assets (its tables are at {found}, this release knows "
                f"{HEAD}). Nothing was changed; use that release or a later one."
            )
        return found == HEAD

    def upgrade(self, connection: sa.Connection) -> None:
        """Run the migrations that are missing, in the caller's transaction."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        found = self._revision(connection)
        if found == HEAD:
            return  # another process did it while we waited
        from alembic import command  # only a ledger that is not up to date pays for the import

        config = _config(connection)
        if found is None and sa.inspect(connection).has_table("versions"):
            command.stamp(config, WITHOUT_MIGRATIONS)
        command.upgrade(config, HEAD)

    @staticmethod
    def _revision(connection: sa.Connection) -> str | None:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        found = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return None if found is None else str(found)


def _config(connection: sa.Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


migrate = _Migrate()
