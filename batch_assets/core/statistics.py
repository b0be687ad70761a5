"""The formulas that the checks use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_EMPTY = 0.5  # records of a category that one side does not have: less than one, whatever the sample's size


def population_stability_index(expected: Mapping[str, int], found: Mapping[str, int]) -> float:
    """PSI = Σ (f − e) · ln(f / e) over the shares of each category.

    Below 0.1 is commonly read as stable, above 0.25 as shifted (Siddiqi, Credit Risk Scorecards, 2006).
    """
    total_expected, total_found = sum(expected.values()), sum(found.values())
    if not total_expected or not total_found:
        return 0.0 if total_expected == total_found else math.inf
    index = 0.0
    for category in expected.keys() | found.keys():
        e = max(expected.get(category, 0), _EMPTY) / total_expected
        f = max(found.get(category, 0), _EMPTY) / total_found
        index += (f - e) * math.log(f / e)
    return index


def wilson_interval(
    successes: float, trials: int, z: float = 1.96, population: int | None = None
) -> tuple[float, float]:
    """The 95 % confidence interval of a share (Wilson, JASA 22, 1927).

    `successes` may be a sum of grades from 0 to 1: their variance is at most that of a yes or no with
    the same mean, so the interval is wide enough. Of a sample from a `population` of so many, what was
    not drawn alone is uncertain: z² shrinks by (N − n) / (N − 1), to nothing when all were drawn
    (Cochran, Sampling Techniques, 1977, section 2.6).
    """
    if trials == 0:
        return 0.0, 1.0
    if population is not None and population >= trials:
        z *= math.sqrt((population - trials) / (population - 1)) if population > 1 else 0.0
    share = successes / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle = share + z * z / (2 * trials)
    scale = 1 + z * z / trials
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)


@dataclass(frozen=True, kw_only=True)
class PairedChange:
    """The same records graded before and now."""

    pairs: int
    worse: int  # pairs with a lower grade now
    better: int
    difference: float  # mean of now − before
    interval: tuple[float, float]  # 95 %
    p_worse: float  # how often so large a loss, or a larger one, would come about by chance


def paired_change(grades: Sequence[tuple[float, float]]) -> PairedChange:
    """Compare (before, now) grades of the same records, each from 0 to 1.

    Of yes and no, `p_worse` is McNemar's test in its exact, one-sided form: the binomial tail of the
    pairs that differ. Of finer grades it is the one-sided z test of the mean difference. The interval
    is Agresti and Min's, with half a pair added on each side (Statistics in Medicine 24, 2005).
    """
    changes = [now - before for before, now in grades]
    worse, better = sum(change < 0 for change in changes), sum(change > 0 for change in changes)
    size = len(changes) + 2
    mean = sum(changes) / size
    error = math.sqrt(max((sum(change * change for change in changes) + 1) / size - mean * mean, 0.0) / size)
    if all(grade in (0, 1) for pair in grades for grade in pair):
        p_worse = binomial_tail(worse, worse + better)
    else:
        p_worse = math.erfc(-mean / error / math.sqrt(2)) / 2
    return PairedChange(
        pairs=len(changes),
        worse=worse,
        better=better,
        difference=sum(changes) / len(changes) if changes else 0.0,
        interval=(max(mean - 1.96 * error, -1.0), min(mean + 1.96 * error, 1.0)),
        p_worse=p_worse,
    )


def binomial_tail(successes: int, trials: int) -> float:
    """P(X ≥ successes) of a fair coin thrown so many times."""
    ways = sum(math.comb(trials, count) for count in range(successes, trials + 1))
    return ways / (1 << trials)


def fisher_lower_tail(successes: int, trials: int, other_successes: int, other_trials: int) -> float:
    """P(as few successes or fewer here), if both groups had the same share (Fisher's exact test, one-sided)."""
    total, drawn = trials + other_trials, successes + other_successes
    lowest = max(0, drawn - other_trials)
    ways = sum(math.comb(trials, k) * math.comb(other_trials, drawn - k) for k in range(lowest, successes + 1))
    return ways / math.comb(total, drawn)
