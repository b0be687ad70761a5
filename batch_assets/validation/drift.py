"""Drift: is the distribution of categories what readers are used to?

Catches a prompt or model that moves many records from one category to another. Cannot tell whether
the old or the new distribution is right, and sees nothing when as many records move one way as the
other.
"""

from __future__ import annotations

from batch_assets.core.sql_text import quote_name
from batch_assets.core.statistics import population_stability_index
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import Evidence


def drift(evidence: Evidence) -> Verdict:
    """Population stability index of the category field against the published version."""
    gate, field = evidence.gate.drift, evidence.category_field
    if field is None:
        return _verdict(evidence, True, "no category field in the output schema, nothing to compare", {})
    found = distribution(evidence, "results", field)
    shares: dict[str, object] = {"field": field, "distribution": found}
    if evidence.baseline_version is None:
        return _verdict(evidence, True, "no baseline: nothing is published yet", shares)
    if evidence.baseline_version == evidence.version.id:
        return _verdict(evidence, True, "no baseline: this version is the published one", shares)
    if field not in {str(row[0]) for row in evidence.connection.execute("DESCRIBE baseline").fetchall()}:
        return _verdict(evidence, True, f"no baseline: {evidence.baseline_version} has no field {field}", shares)
    expected = distribution(evidence, "baseline", field)
    if not found or not expected:
        empty = evidence.version.id if not found else evidence.baseline_version
        return _verdict(
            evidence, False, f"{empty} has no rows that can be read, so there is nothing to compare", shares
        )
    index = population_stability_index(expected, found)
    passed = index <= gate.psi_max
    shares |= {"baseline": evidence.baseline_version, "baseline_distribution": expected, "psi": round(index, 4)}
    comparison = "within" if passed else "above"
    summary = f"PSI of {field} against {evidence.baseline_version} is {index:.3f}, {comparison} {gate.psi_max:g}"
    return _verdict(evidence, passed, summary, shares)


def distribution(evidence: Evidence, table: str, field: str) -> dict[str, int]:
    """Rows per category, the most frequent first."""
    name = quote_name(field)
    rows = evidence.connection.execute(
        f"SELECT coalesce({name}::VARCHAR, '(null)') AS category, count(*) AS n FROM {table} GROUP BY 1 ORDER BY n DESC, 1"
    ).fetchall()
    return {str(category): int(count) for category, count in rows}


def _verdict(evidence: Evidence, passed: bool, summary: str, numbers: dict[str, object]) -> Verdict:
    gate = evidence.gate.drift
    return Verdict(
        check="drift",
        passed=passed,
        blocking=gate.blocking,
        summary=summary,
        numbers=numbers,
        thresholds={"psi_max": gate.psi_max},
    )
