"""The two formulas that the checks use."""

from __future__ import annotations

import math
from collections.abc import Mapping

_EMPTY_SHARE = 1e-4  # stands for a category that one side does not have; the usual convention


def population_stability_index(expected: Mapping[str, int], found: Mapping[str, int]) -> float:
    """PSI = Σ (f − e) · ln(f / e) over the shares of each category.

    Below 0.1 is commonly read as stable, above 0.25 as shifted (Siddiqi, Credit Risk Scorecards, 2006).
    """
    total_expected, total_found = sum(expected.values()), sum(found.values())
    if not total_expected or not total_found:
        return 0.0 if total_expected == total_found else math.inf
    index = 0.0
    for category in expected.keys() | found.keys():
        e = max(expected.get(category, 0) / total_expected, _EMPTY_SHARE)
        f = max(found.get(category, 0) / total_found, _EMPTY_SHARE)
        index += (f - e) * math.log(f / e)
    return index


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % confidence interval of a share (Wilson, JASA 22, 1927)."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle = share + z * z / (2 * trials)
    scale = 1 + z * z / trials
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)
