"""The tables of release 0.1.0, which were made without migrations, on SQLite only.

There is nothing to do: an old ledger has them, and a new one gets all its tables from 0002.
"""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Mark the starting point."""
