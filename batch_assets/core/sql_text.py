"""Quoting for DuckDB: names and texts come from specs and records, so they are never trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GLOB = re.compile(r"[*?\[]")


def quote_name(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def parquet_rows(paths: Iterable[str], options: str = "") -> str:
    """A table expression: the rows of these files, each taken by its exact name and for what is in it.

    A folder named `day=7` is no column, and `*` in a name is not a pattern.
    """
    files = ", ".join(quote_text(_GLOB.sub(r"[\g<0>]", path)) for path in paths)
    return f"read_parquet([{files}], hive_partitioning = false{options and ', '}{options})"


def problem_of(error: Exception) -> str:
    """The line of a DuckDB error that says what is wrong.

    That is the first one; but where DuckDB reads through Python code, the error of that code comes after
    its traceback.
    """
    lines = [line for line in str(error).splitlines() if line and not line.startswith(("Traceback", " "))]
    return lines[0].removeprefix("StoreError: ") if lines else str(error)


def quote_text(text: str) -> str:
    """An SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
