"""Quality by slice: who computed a result, and which class its record is of.

One version may have been answered by engines of several releases on several kinds of hardware. Of the
golden records that have an answer, each slice's accuracy stands beside that of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from batch_assets.core.quoting import quoted
from batch_assets.core.statistics import fisher_lower_tail, wilson_interval
from batch_assets.validation.evaluation.golden import Compared

SLICES_MAX = 50  # of one kind, the largest first
ALPHA = 0.05  # over all slices of a kind (Bonferroni)

KINDS: dict[str, Callable[[Compared], str | None]] = {
    "_engine": lambda one: one.engine,
    "_record_class": lambda one: one.record_class,
}


def slices(compared: Sequence[Compared]) -> dict[str, list[dict[str, Any]]]:
    """Per kind, its slices with accuracy, size and interval; a kind that no row has is left out."""
    found = {
        kind: _of_kind([(of(one), one.is_right) for one in compared if one.is_answered]) for kind, of in KINDS.items()
    }
    return {kind: rows for kind, rows in found.items() if rows}


def _of_kind(answered: Sequence[tuple[str | None, bool]]) -> list[dict[str, Any]]:
    groups: dict[str, list[bool]] = {}
    for name, is_right in answered:
        if name is not None:
            groups.setdefault(name, []).append(is_right)
    total = sum(map(len, groups.values()))
    right = sum(map(sum, groups.values()))
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:SLICES_MAX]
    rows = []
    for name, grades in largest:
        low, high = wilson_interval(sum(grades), len(grades))
        p_worse = fisher_lower_tail(sum(grades), len(grades), right - sum(grades), total - len(grades))
        rows.append(
            {
                "slice": name,
                "golden": len(grades),
                "accuracy": round(sum(grades) / len(grades), 4),
                "interval_95": [round(low, 4), round(high, 4)],
                "clearly_worse": len(groups) > 1 and p_worse < ALPHA / len(groups),
            }
        )
    return rows


def outliers(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A clause for each slice that is worse than the others by more than chance."""
    return [
        f"{kind} {quoted(row['slice'])} is clearly worse than the rest ({row['accuracy']:.0%} of {row['golden']})"
        for kind, rows in found.items()
        for row in rows
        if row["clearly_worse"]
    ]
