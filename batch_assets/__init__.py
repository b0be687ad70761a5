"""Offline LLM inference as Dagster assets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batch_assets.assets.warehouse import PublishedWarehouse
    from batch_assets.operations.read import read_published

__all__ = ["PublishedWarehouse", "read_published"]


def __getattr__(name: str) -> Any:
    """What readers import from here is loaded when it is asked for: DuckDB and pyarrow take a second."""
    if name == "read_published":
        from batch_assets.operations.read import read_published

        return read_published
    if name == "PublishedWarehouse":
        from batch_assets.assets.warehouse import PublishedWarehouse

        return PublishedWarehouse
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
