"""Drift of an incremental version's own answers: in the merged whole, a bad night would drown.

A night changes one record in a hundred, so that answers which are all wrong move the whole by less than
any limit. Here they are compared by themselves with what readers see. Changed records are no sample of all
records, and for that only the index of the whole distribution can fail, by the same `psi_max`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_assets.core.noise import psi_noise
from batch_assets.core.quoting import plain_words
from batch_assets.core.sql_text import quote_name, quote_text
from batch_assets.core.statistics import population_stability_index
from batch_assets.validation.evidence import Evidence
from batch_assets.validation.two_sides import NULL, distribution


@dataclass(frozen=True, kw_only=True)
class ChangesDrift:
    """What was measured, and what is wrong with it."""

    numbers: Mapping[str, Any]
    fault: str | None
    examples: tuple[str, ...]


def drift_of_changes(evidence: Evidence, category: str, baseline: Mapping[str, int]) -> ChangesDrift | None:
    """Distribution of the category over the version's own rows against the published one; None when it has no rows."""
    gate, own = evidence.gate.drift, distribution(evidence, "results", category)
    before, after = sum(baseline.values()), sum(own.values())
    if evidence.version.changes is None or not after:
        return None
    index = population_stability_index(baseline, own)
    noise = psi_noise(before, after, len({*baseline, *own}), gate.false_alarms)
    numbers = {"rows": after, "distribution": own, "psi": round(index, 4), "psi_noise": round(noise, 4)}
    if index <= max(gate.psi_max, noise):
        return ChangesDrift(numbers=numbers, fault=None, examples=())
    grown = max(own, key=lambda name: own[name] / after - baseline.get(name, 0) / before)
    fault = (
        f"PSI of the {after:,} changes by themselves is {index:.3f} (at most {gate.psi_max:g}): {own[grown] / after:.1%} are "
        f"{plain_words(grown)}, of what is published {baseline.get(grown, 0) / before:.1%}"
    )
    return ChangesDrift(numbers=numbers, fault=fault, examples=_examples(evidence, category, grown))


def _examples(evidence: Evidence, category: str, value: str) -> tuple[str, ...]:
    record_id = quote_name(evidence.version.snapshot.record_id)
    answered = f"coalesce({quote_name(category)}::VARCHAR, '{NULL}') = {quote_text(value)}"
    return evidence.texts(f"SELECT {record_id} FROM results WHERE {answered} ORDER BY 1")
