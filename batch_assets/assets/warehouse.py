"""The warehouse as a Dagster resource, for assets of other teams that read what is published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from dagster_duckdb import DuckDBResource
from pydantic import Field

from batch_assets.assets.opened import opened
from batch_assets.core.sql_text import quote_name, quote_text
from batch_assets.errors import InputError
from batch_assets.operations.catalog import open_published
from batch_assets.settings import Settings


class PublishedWarehouse(DuckDBResource):
    """Read-only connections to `published.<job>` and `published.<job>__history`.

    Our definitions have it under the name `warehouse`; a downstream asset asks for it by that name:

        @dg.asset(deps=[dg.AssetKey(["reviews", "published"])])
        def categories(warehouse: PublishedWarehouse) -> None:
            with warehouse.get_connection() as connection:
                connection.sql("SELECT category, count(*) FROM published.reviews GROUP BY ALL").show()

    A code location of its own makes one: `PublishedWarehouse()` for the home that BATCH_ASSETS_HOME names,
    or `PublishedWarehouse(database="/home/…/.batch_assets/warehouse.duckdb")`.

    dagster-duckdb's own resource opens for writing, which shuts out everybody else, and leaves the
    connection open when the block raises. This one opens read-only, takes no lock, always closes, and
    finds a catalog that is missing, old or damaged rebuilt. What one connection reads is one version
    of each job from beginning to end.
    """

    database: str = Field(
        default_factory=lambda: str(Settings().warehouse),
        description="warehouse.duckdb of a home; of this one by default",
    )

    @contextmanager
    def get_connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Raises StoreError when nothing is published yet. `connection_config` are DuckDB settings."""
        settings = Settings(home=Path(self.database).parent)
        if settings.warehouse != Path(self.database).absolute():
            raise InputError(f"{self.database} is no warehouse of ours: that is warehouse.duckdb in a home.")
        with opened(settings) as deployment, open_published(deployment) as connection:
            for name, value in self.connection_config.items():
                connection.execute(f"SET {quote_name(name)} = {quote_text(str(value))}")
            yield connection


def published_warehouse(settings: Settings) -> PublishedWarehouse:
    """The warehouse of this home."""
    return PublishedWarehouse(database=str(settings.warehouse))
