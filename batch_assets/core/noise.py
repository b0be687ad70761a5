"""What two samples of one population differ by through chance alone.

Every function that takes `false_alarms` answers with the difference that chance exceeds in that share of
comparisons. A check fails on what is beyond its threshold and beyond this: small jobs then do not cry
wolf, and large ones are not waved through.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


def chi_square_quantile(probability: float, degrees: int) -> float:
    """Quantile of χ², by Wilson and Hilferty's cube (PNAS 17, 1931); within 1 % beyond the median."""
    z = NormalDist().inv_cdf(probability)
    spread = 2 / (9 * degrees)
    return degrees * max(1 - spread + z * math.sqrt(spread), 0.0) ** 3


def psi_noise(before: int, after: int, categories: int, false_alarms: float) -> float:
    """Population stability index under no change: (1/n₁ + 1/n₂) · χ² with k − 1 degrees of freedom.

    Source: Yurdakul, Statistical Properties of Population Stability Index, 2018. Samples that share
    records differ by less.
    """
    if categories < 2 or not before or not after:
        return 0.0
    return (1 / before + 1 / after) * chi_square_quantile(1 - false_alarms, categories - 1)


def total_variation_noise(variances: list[float], before: int, after: int, false_alarms: float) -> float:
    """Total variation under no change, from the variance of each category's difference.

    Half the sum of E|N(0, σ²)| = σ·√(2/π), plus what McDiarmid's inequality (1989) leaves above the mean
    when one record more or less changes it by 1/n.
    """
    if not before or not after:
        return 0.0
    mean = sum(map(math.sqrt, variances)) / math.sqrt(2 * math.pi)
    return mean + math.sqrt(math.log(1 / false_alarms) / 2 * (1 / before + 1 / after))


def ks_noise(before: int, after: int, false_alarms: float) -> float:
    """Kolmogorov and Smirnov's distance under no change: √(ln(2/α)/2 · (1/n₁ + 1/n₂)) (Smirnov, 1948).

    Of whole numbers, such as lengths, it is smaller.
    """
    if not before or not after:
        return 1.0
    return math.sqrt(math.log(2 / false_alarms) / 2 * (1 / before + 1 / after))


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many records have a trait before and after; `pairs` are the records that are in both samples."""

    before: int
    before_with: int
    after: int
    after_with: int
    pairs: int = 0
    pairs_before_with: int = 0
    pairs_after_with: int = 0
    pairs_both_with: int = 0

    @property
    def difference(self) -> float:
        """Share after minus share before; 0 when one sample is empty."""
        if not self.before or not self.after:
            return 0.0
        return self.after_with / self.after - self.before_with / self.before

    @property
    def variance(self) -> float:
        """Variance of the difference under no change.

        Two proportions of partially overlapping samples (Derrick, Toher and White, 2017): p(1−p)/n₁ +
        p(1−p)/n₂ − 2·m·cov/(n₁·n₂). Without shared records it is the two-sample z test; when all are
        shared it is McNemar's (1947), which sees far less noise where most answers agree.
        """
        if not self.before or not self.after:
            return 0.0
        pooled = (self.before_with + self.after_with) / (self.before + self.after)
        apart = pooled * (1 - pooled) * (1 / self.before + 1 / self.after)
        if not self.pairs:
            return apart
        covariance = self.pairs_both_with / self.pairs - self.pairs_before_with * self.pairs_after_with / self.pairs**2
        return max(apart - 2 * self.pairs * covariance / (self.before * self.after), 0.0)

    def visible(self, false_alarms: float) -> float:
        """The smallest difference that is told from chance, with the correction for continuity."""
        if not self.before or not self.after:
            return 1.0
        z = NormalDist().inv_cdf(1 - false_alarms / 2)
        return z * math.sqrt(self.variance) + (1 / self.before + 1 / self.after) / 2


def hypergeometric_tail(found: int, drawn: int, marked: int, total: int) -> float:
    """P(at least `found` marked among `drawn`), when `marked` of `total` are: Fisher's exact test, one-sided."""
    term = math.exp(_log_choose(marked, found) + _log_choose(total - marked, drawn - found) - _log_choose(total, drawn))
    tail, count = 0.0, found
    while term > 0.0 and count <= min(marked, drawn):
        tail += term
        if count > drawn * marked / total and term < tail * 1e-12:
            break  # past the mean the terms only shrink
        term *= (marked - count) * (drawn - count) / ((count + 1) * (total - marked - drawn + count + 1))
        count += 1
    return min(tail, 1.0)


def _log_choose(total: int, taken: int) -> float:
    if not 0 <= taken <= total:
        return -math.inf
    return math.lgamma(total + 1) - math.lgamma(taken + 1) - math.lgamma(total - taken + 1)
