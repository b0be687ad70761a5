"""The category distribution before and after, as a picture inside Dagster's metadata."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping

import dagster as dg
from matplotlib.figure import Figure

from batch_assets.core.quoting import printable
from batch_assets.core.verdicts import Verdict

CATEGORIES_MAX = 20  # more bars than that cannot be read
LABEL_CHARS = 30
_BEFORE, _AFTER = "#9aa5b1", "#3b5bdb"


def drift_picture(verdict: Verdict) -> dg.MetadataValue | None:
    """Bars per category; None when the verdict holds no distribution."""
    found = verdict.numbers.get("distribution")
    if not found:
        return None
    before = verdict.numbers.get("baseline_distribution")
    figure = _bars(str(verdict.numbers.get("field", "")), found, before, str(verdict.numbers.get("baseline", "")))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the font lacks a character; it becomes a box
        figure.savefig(buffer, format="png", dpi=110)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return dg.MetadataValue.md(f"![drift](data:image/png;base64,{encoded})")


def _bars(field: str, found: Mapping[str, int], before: Mapping[str, int] | None, baseline: str) -> Figure:
    ranked = sorted({*found, *(before or {})}, key=lambda name: (-found.get(name, 0), name))[:CATEGORIES_MAX]
    figure = Figure(figsize=(7, 1.2 + 0.4 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    width = 0.4 if before else 0.8
    if before:
        axes.barh(
            [y - width / 2 for y in range(len(ranked))], _shares(before, ranked), width, color=_BEFORE, label=baseline
        )
    offset = width / 2 if before else 0.0
    axes.barh(
        [y + offset for y in range(len(ranked))], _shares(found, ranked), width, color=_AFTER, label="this version"
    )
    axes.set_yticks(range(len(ranked)), [printable(name, chars_max=LABEL_CHARS) for name in ranked], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(f"% of results per {field}", parse_math=False)
    if before:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _shares(counts: Mapping[str, int], names: list[str]) -> list[float]:
    total = sum(counts.values()) or 1
    return [100 * counts.get(name, 0) / total for name in names]
