"""Quality by slice: who computed a result, and which class its record is of.

One version may have been answered by engines of several releases on several kinds of hardware. Each
slice's grades stand beside those of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batch_assets.core.quoting import quoted
from batch_assets.core.statistics import fisher_lower_tail, wilson_interval
from batch_assets.validation.evaluation.sample import ORIGINS

SLICES_MAX = 50  # of one kind, the largest first
ALPHA = 0.05  # chance of naming a slice that is like the others, over all slices of a kind (Bonferroni)
GOOD = 0.5  # a finer grade from here on counts as right in the test

Slices = dict[str, list[dict[str, Any]]]


def slices(graded: Sequence[tuple[Mapping[str, str | None], float]]) -> Slices:
    """Per kind, its slices with mean grade, size and interval; a kind that no result has is left out.

    `graded` holds where each result comes from, and its grade from 0 to 1.
    """
    found = {kind: _of_kind([(origin.get(kind), grade) for origin, grade in graded]) for kind in ORIGINS}
    return {kind: rows for kind, rows in found.items() if rows}


def _of_kind(graded: Sequence[tuple[str | None, float]]) -> list[dict[str, Any]]:
    groups: dict[str, list[float]] = {}
    for name, grade in graded:
        if name is not None:
            groups.setdefault(name, []).append(grade)
    total = sum(map(len, groups.values()))
    right = sum(map(_good, groups.values()))
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:SLICES_MAX]
    rows = []
    for name, grades in largest:
        low, high = wilson_interval(sum(grades), len(grades))
        p_worse = fisher_lower_tail(_good(grades), len(grades), right - _good(grades), total - len(grades))
        rows.append(
            {
                "slice": name,
                "graded": len(grades),
                "mean": round(sum(grades) / len(grades), 4),
                "interval_95": [round(low, 4), round(high, 4)],
                "clearly_worse": len(groups) > 1 and p_worse < ALPHA / len(groups),
            }
        )
    return rows


def _good(grades: Sequence[float]) -> int:
    return sum(grade >= GOOD for grade in grades)


def outliers(found: Slices) -> list[str]:
    """A clause for each slice that is worse than the others by more than chance."""
    return [
        f"{kind} {quoted(row['slice'])} is clearly worse than the rest ({row['mean']:.0%} of {row['graded']})"
        for kind, rows in found.items()
        for row in rows
        if row["clearly_worse"]
    ]
