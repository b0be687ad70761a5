"""A criterion: grades from 0 to 1 of one kind, of the sampled results and of the published ones.

Whoever grades, the rule is one: the lower end of the mean's 95 % interval must reach the minimum,
nothing may have gone wrong in grading, and the grades must not be worse than those of the results
that readers see now by more than chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batch_assets.core.quoting import quoted
from batch_assets.core.statistics import PairedChange, paired_change, wilson_interval
from batch_assets.validation.evidence import EXAMPLES

ALPHA = 0.05  # chance of calling a version worse than the published one that is not, over all criteria


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """What one kind of grading found."""

    name: str
    minimum: float | None
    grades: Mapping[str, float]  # by record id
    population: int | None = None  # how many the graded ones were drawn from; None: no end to them
    published: Mapping[str, float] = field(default_factory=dict)
    whys: Mapping[str, str] = field(default_factory=dict)  # record id -> what is wrong, worst first
    problems: Mapping[str, str] = field(default_factory=dict)  # record id -> why it could not be graded
    refusal: str | None = None  # why there is no grade at all
    facts: Mapping[str, Any] = field(default_factory=dict)  # numbers of its own: what graded, by which version

    @property
    def mean(self) -> float:
        return sum(self.grades.values()) / len(self.grades) if self.grades else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(sum(self.grades.values()), len(self.grades), population=self.population)

    @property
    def change(self) -> PairedChange | None:
        """Against the published results of the same records; None when there are none."""
        pairs = [(before, self.grades[id_]) for id_, before in self.published.items() if id_ in self.grades]
        return paired_change(pairs) if pairs else None

    def is_worse(self, alpha: float) -> bool:
        """Worse than what is published, by more than chance explains."""
        return self.change is not None and self.change.p_worse < alpha

    def is_met(self, alpha: float) -> bool:
        reached = self.minimum is None or (bool(self.grades) and self.interval[0] >= self.minimum)
        return reached and not self.problems and self.refusal is None and not self.is_worse(alpha)

    def example_ids(self) -> list[str]:
        return [*self.problems, *self.whys][:EXAMPLES]

    def numbers(self) -> dict[str, Any]:
        """Plain JSON."""
        found: dict[str, Any] = {
            **self.facts,
            "graded": len(self.grades),
            "mean": round(self.mean, 4),
            "interval_95": [round(end, 4) for end in self.interval],
            "minimum": self.minimum,
        }
        if self.whys:
            found["faulty"] = _first(self.whys)
        if self.problems:
            found |= {"not_graded": len(self.problems), "not_graded_examples": _first(self.problems)}
        if self.refusal is not None:
            found["refusal"] = self.refusal
        if self.change is not None:
            found["published"] = change_numbers(self.change)
        return found

    def summary(self, alpha: float) -> str:
        """One clause for people."""
        if self.refusal is not None:
            return f"{self.name}: {self.refusal}"
        if not self.grades and not self.problems:
            return f"{self.name}: nothing to grade"
        which = "all " if self.population == len(self.grades) else ""
        parts = [f"{self.mean:.0%} of {which}{len(self.grades)}; {asked(self.interval, self.minimum)}"]
        if self.problems:
            id_, problem = next(iter(self.problems.items()))
            parts.append(f"{len(self.problems)} could not be graded ({quoted(id_)}: {problem})")
        if self.change is not None and self.is_worse(alpha):
            parts.append(worse(self.change))
        if self.minimum is not None and self.interval[0] < self.minimum:
            parts.extend(too_few(len(self.grades), self.minimum, self.population))
        return f"{self.name}: {'; '.join(parts)}"


def asked(interval: tuple[float, float], minimum: float | None) -> str:
    """The interval, and what of it is compared."""
    low, high = interval
    parts = [f"{low:.0%} to {high:.0%} at 95%"] if low < high else []
    if minimum is not None:
        wanted = f"at least {minimum:.0%} asked"
        parts.append(wanted if low >= minimum or low == high else f"{wanted} of the lower end")
    return ", ".join(parts)


def worse(change: PairedChange) -> str:
    """A loss against the published version, in words."""
    return (
        f"worse than the published version on the same {change.pairs} records by {-change.difference:.1%} "
        f"({change.worse} lost, {change.better} gained; p {change.p_worse:.2g})"
    )


def too_few(graded: int, minimum: float, population: int | None = None) -> list[str]:
    """Says so when not even a faultless sample of this size could reach the minimum."""
    best, _ = wilson_interval(graded, graded, population=population)
    return [f"{graded} grades cannot show more than {best:.0%}, even if all were right"] if best < minimum else []


def change_numbers(change: PairedChange) -> dict[str, Any]:
    """Plain JSON."""
    return {
        "pairs": change.pairs,
        "worse": change.worse,
        "better": change.better,
        "difference": round(change.difference, 4),
        "difference_interval_95": [round(end, 4) for end in change.interval],
        "p_worse": float(f"{change.p_worse:.4g}"),
    }


def _first(texts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"record_id": id_, "why": why} for id_, why in list(texts.items())[:EXAMPLES]]
