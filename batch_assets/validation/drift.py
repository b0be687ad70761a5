"""Drift: are the results what readers are used to?

Compares the rows that readers would see with those that they see now: the distribution of the category
field (population stability index, total variation, and the move of each category), of text and list
lengths, and of nulls; by record class too. What fails is beyond its maximum and beyond what chance
explains at this size (`core/noise.py`). Records that both versions answered are compared one by one, so
that a move of two points is seen among 2,000 of them when most answers agree; without shared records it
takes about 25,000. `numbers` says what could be seen.

Catches a prompt or model that moves records from one category to another, answers longer or shorter, or
leaves fields out. Cannot tell whether the old or the new answers are right, and does not fail when as
many records move one way as the other: the churn is reported, and fails only with `churn_max`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batch_assets.core.noise import Counts, ks_noise, psi_noise, total_variation_noise
from batch_assets.core.output_schema import enum_values, is_optional
from batch_assets.core.quoting import plain_words
from batch_assets.core.sql_text import quote_name
from batch_assets.core.statistics import population_stability_index
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.drift_of_changes import drift_of_changes
from batch_assets.validation.evidence import Evidence
from batch_assets.validation.two_sides import (
    OTHER,
    TwoSides,
    columns_of,
    distribution,
    length_distance,
    lengths,
    median,
    moved_ids,
    two_sides,
)

_DIGITS = 6


@dataclass
class _Findings:
    """What was measured, and what of it is too much."""

    numbers: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    examples: tuple[str, ...] = ()


def drift(evidence: Evidence) -> Verdict:
    """Distribution, lengths, nulls and churn of the results against the published version."""
    category, baseline = evidence.category_field, evidence.baseline_version
    if category is None:
        return _verdict(evidence, True, "no category field in the output schema, nothing to compare", {})
    found = distribution(evidence, "whole", category)
    numbers: dict[str, Any] = {"field": category, "distribution": found}
    if baseline is None:
        return _verdict(evidence, True, "no baseline: nothing is published yet", numbers)
    if baseline == evidence.version.id:
        return _verdict(evidence, True, "no baseline: this version is the published one", numbers)
    columns = columns_of(evidence, "baseline")
    if category not in columns:
        return _verdict(evidence, True, f"no baseline: {baseline} has no field {category}", numbers)
    expected = distribution(evidence, "baseline", category)
    if not found or not expected:
        empty = evidence.version.id if not found else baseline
        return _verdict(
            evidence, False, f"{empty} has no rows that can be read, so there is nothing to compare", numbers
        )
    numbers |= {"baseline": baseline, "baseline_distribution": expected}
    findings = _Findings(numbers)
    kept = sorted({*expected, *found} - {OTHER})
    optional = [name for name, info in evidence.model.model_fields.items() if is_optional(info) and name in columns]
    sides = two_sides(evidence, category, kept, optional)
    _compare_categories(evidence, sides, findings)
    _compare_changes(evidence, category, expected, findings)
    _compare_classes(evidence, sides, findings)
    _compare_lengths(evidence, columns, findings)
    _compare_nulls(evidence, sides, findings)
    summary = f"PSI of {category} against {baseline} is {numbers['psi']:.3f}"
    said = ", ".join(findings.faults) if findings.faults else _passed(evidence, numbers)
    return _verdict(evidence, not findings.faults, f"{summary}, {said}", numbers, findings.examples)


def _compare_categories(evidence: Evidence, sides: TwoSides, findings: _Findings) -> None:
    gate, counts = evidence.gate.drift, sides.counts()
    measured, faults, worst = _distance(evidence, counts, tests=len(counts))
    churn = sides.churn()
    findings.numbers |= {**measured, **churn, "moves": _moves(counts)}
    findings.faults += faults
    if worst is not None:
        findings.examples = moved_ids(evidence, worst)
    if gate.churn_max is not None and churn["churn"] is not None and churn["churn"] > gate.churn_max:
        findings.faults.append(f"{churn['churn']:.1%} of records changed category (at most {gate.churn_max:.1%})")


def _compare_changes(evidence: Evidence, category: str, expected: Mapping[str, int], findings: _Findings) -> None:
    found = drift_of_changes(evidence, category, expected)
    if found is None:
        return
    findings.numbers["changes"] = found.numbers
    if found.fault is not None:
        findings.faults.append(found.fault)
        findings.examples = findings.examples or found.examples


def _compare_classes(evidence: Evidence, sides: TwoSides, findings: _Findings) -> None:
    """The same for each record class by itself: a small class can turn while the whole stands still."""
    slices = {name: sides.of_class(name) for name in sides.classes}
    counted = {name: one.counts() for name, one in slices.items()}
    tests = sum(map(len, counted.values()))
    by_class = {}
    for name, counts in counted.items():
        measured, faults, worst = _distance(evidence, counts, tests=tests)
        churn = slices[name].churn()["churn"]
        by_class[name] = {"rows": next(iter(counts.values())).after if counts else 0, "churn": churn, **measured}
        findings.faults += [f"class {plain_words(name)}: {fault}" for fault in faults]
        if worst is not None and not findings.examples:
            findings.examples = moved_ids(evidence, worst)
    if by_class:
        findings.numbers["by_class"] = by_class


def _distance(
    evidence: Evidence, counts: Mapping[str, Counts], *, tests: int
) -> tuple[dict[str, Any], list[str], str | None]:
    """(measures, faults, the category that moved most if one moved too much) of one slice."""
    gate = evidence.gate.drift
    one = next(iter(counts.values()), None)
    if one is None or not one.before or not one.after:
        return {}, [], None
    index = population_stability_index(
        {name: count.before_with for name, count in counts.items()},
        {name: count.after_with for name, count in counts.items()},
    )
    variation = sum(abs(count.difference) for count in counts.values()) / 2
    alarms = gate.false_alarms / tests
    index_noise = psi_noise(one.before, one.after, len(counts), alarms)
    variation_noise = total_variation_noise(
        [count.variance for count in counts.values()], one.before, one.after, alarms
    )
    visible = {name: count.visible(alarms) for name, count in counts.items()}
    measured = {
        "psi": round(index, 4),
        "psi_noise": round(index_noise, 4),
        "total_variation": round(variation, _DIGITS),
        "total_variation_noise": round(variation_noise, _DIGITS),
        "smallest_visible_move": round(max(visible.values()), _DIGITS),
    }
    faults = []
    if index > max(gate.psi_max, index_noise):
        faults.append(f"above {gate.psi_max:g}" if tests == len(counts) else f"PSI {index:.3f}")
    if variation > max(gate.total_variation_max, variation_noise):
        faults.append(f"total variation is {variation:.3f} (at most {gate.total_variation_max:g})")
    moved = {
        name: count.difference
        for name, count in counts.items()
        if abs(count.difference) > max(gate.category_move_max, visible[name])
    }
    worst = max(moved, key=lambda name: abs(moved[name]), default=None)
    if worst is not None:
        faults.append(_move(worst, counts[worst], gate.category_move_max))
    return measured, faults, worst


def _move(name: str, count: Counts, allowed: float) -> str:
    before, after = count.before_with / count.before, count.after_with / count.after
    shown = plain_words(name)
    return f"{shown} moved by {100 * count.difference:+.2f} points to {after:.2%} (was {before:.2%}; at most {100 * allowed:g})"


def _moves(counts: Mapping[str, Counts]) -> dict[str, float]:
    """Change of each category's share, the largest first."""
    ranked = sorted(counts.items(), key=lambda item: -abs(item[1].difference))
    return {name: round(count.difference, _DIGITS) for name, count in ranked}


def _compare_lengths(evidence: Evidence, columns: Mapping[str, str], findings: _Findings) -> None:
    gate, ours = evidence.gate.drift, columns_of(evidence, "whole")
    measurable = {
        name: ours[name]
        for name, info in evidence.model.model_fields.items()
        if (ours.get(name) == "VARCHAR" or ours.get(name, "").endswith("[]"))
        and ours.get(name) == columns.get(name)
        and not enum_values(info.annotation)
        and name != evidence.category_field
    }
    measured = {}
    for name, kind in measurable.items():
        before, after = lengths(evidence, "baseline", name, kind), lengths(evidence, "whole", name, kind)
        distance = length_distance(before, after)
        noise = ks_noise(sum(before.values()), sum(after.values()), gate.false_alarms / len(measurable))
        middle = (median(before), median(after))
        measured[name] = {
            "distance": round(distance, _DIGITS),
            "noise": round(noise, _DIGITS),
            "median_before": middle[0],
            "median_after": middle[1],
        }
        if distance > max(gate.length_distance_max, noise):
            medians = f"median {middle[1]}, was {middle[0]}"
            findings.faults.append(
                f"lengths of {name} differ by {distance:.3f} (at most {gate.length_distance_max:g}; {medians})"
            )
    if measured:
        findings.numbers["lengths"] = measured


def _compare_nulls(evidence: Evidence, sides: TwoSides, findings: _Findings) -> None:
    gate = evidence.gate.drift
    sizes = {"before": sum(sides.before.values()), "after": sum(sides.after.values())}
    shared = sum(sides.pairs.values())
    measured = {}
    for name, (was, is_, both) in sides.null_pairs.items():
        is_null = f"WHERE {quote_name(name)} IS NULL"
        nulls = {table: evidence.count(f"SELECT count(*) FROM {table} {is_null}") for table in ("baseline", "whole")}
        count = Counts(
            **sizes,
            before_with=nulls["baseline"],
            after_with=nulls["whole"],
            pairs=shared,
            pairs_before_with=was,
            pairs_after_with=is_,
            pairs_both_with=both,
        )
        visible = count.visible(gate.false_alarms / len(sides.null_pairs))
        measured[name] = {
            "before": round(count.before_with / count.before, _DIGITS),
            "after": round(count.after_with / count.after, _DIGITS),
            "smallest_visible_move": round(visible, _DIGITS),
        }
        if abs(count.difference) > max(gate.null_move_max, visible):
            findings.faults.append(f"nulls of {_move(name, count, gate.null_move_max)}")
    if measured:
        findings.numbers["nulls"] = measured


def _passed(evidence: Evidence, numbers: Mapping[str, Any]) -> str:
    said = (
        f"within {evidence.gate.drift.psi_max:g}" if numbers["psi"] <= evidence.gate.drift.psi_max else "within chance"
    )
    seen = max(numbers["smallest_visible_move"], evidence.gate.drift.category_move_max)
    churn = "" if numbers["churn"] is None else f"; {numbers['churn']:.1%} of shared records changed category"
    return f"{said}; a move of {100 * seen:.1f} points would be seen{churn}"


def _verdict(
    evidence: Evidence, passed: bool, summary: str, numbers: dict[str, Any], examples: tuple[str, ...] = ()
) -> Verdict:
    gate = evidence.gate.drift
    return Verdict(
        check="drift",
        passed=passed,
        blocking=gate.blocking,
        summary=summary,
        numbers=numbers,
        thresholds={
            name: value for name, value in gate.model_dump().items() if name.endswith("_max") and value is not None
        },
        example_ids=examples,
    )
