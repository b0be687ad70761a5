"""Quoting for DuckDB: names and texts come from specs and records, so they are never trusted."""

from __future__ import annotations


def quote_name(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """An SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
