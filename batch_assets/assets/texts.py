"""Texts for Dagster's pages. Record text is untrusted: nothing from it becomes Markdown here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import dagster as dg

from batch_assets.core.quoting import legible

CELL_CHARS = 200
ITEMS_MAX = 100  # of a mapping, such as the rows per category


def fenced(text: str) -> dg.MetadataValue:
    """A text shown letter by letter: the fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return dg.MetadataValue.md(f"{fence}text\n{text}\n{fence}")


def clip(value: Any) -> str | int | float | bool | None:
    """A value as a table cell: plain, and short."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = legible(value) if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return text if len(text) <= CELL_CHARS else f"{text[: CELL_CHARS - 1]}…"


def plain(value: Any) -> Any:
    """A value that JSON can carry, and a page; infinities and dates become text, long mappings are cut."""
    if isinstance(value, Mapping):
        shown = {str(clip(str(key))): plain(item) for key, item in islice(value.items(), ITEMS_MAX)}
        return shown if len(value) <= ITEMS_MAX else {**shown, "…": f"{len(value) - ITEMS_MAX:,} more"}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return legible(value)
    return value if isinstance(value, int | float | bool | None) else str(value)


def metadata_value(value: Any) -> dg.MetadataValue:
    """A number as a number, so that the UI can plot it; text as text; the rest as JSON."""
    value = plain(value)
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, int):
        return dg.MetadataValue.int(value)
    if isinstance(value, float):
        return dg.MetadataValue.float(value)
    if isinstance(value, str):
        return dg.MetadataValue.text(value)
    return dg.MetadataValue.json(value)
