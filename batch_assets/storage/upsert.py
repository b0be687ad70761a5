"""The two inserts that mind what is there already, in the spelling of each database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def insert_if_absent(connection: sa.Connection, table: sa.Table) -> Any:
    """INSERT that leaves an existing row alone: exactly one writer of a key wins."""
    return _insert(connection, table).on_conflict_do_nothing()


def insert_or_add(connection: sa.Connection, table: sa.Table, keys: Sequence[str], sums: Sequence[str]) -> Any:
    """INSERT that adds to the counters of an existing row."""
    statement = _insert(connection, table)
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=list(keys), set_=added)


def insert_or_replace(connection: sa.Connection, table: sa.Table, keys: Sequence[str]) -> Any:
    """INSERT that overwrites the other columns of an existing row."""
    statement = _insert(connection, table)
    others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=list(keys), set_=others)
