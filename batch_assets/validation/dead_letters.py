"""Dead letters: how many records were given up, and why.

A rate above the threshold stops the publication: behind it is often a class of input that the
prompt cannot handle.
"""

from __future__ import annotations

from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import Evidence


def dead_letters(evidence: Evidence) -> Verdict:
    """Rate over all records, and counts by reason."""
    gate = evidence.gate.dead_letters
    by_reason = evidence.connection.execute(
        "SELECT reason, count(*) AS n FROM dead_letters GROUP BY reason ORDER BY n DESC, reason"
    ).fetchall()
    total = sum(count for _, count in by_reason)
    rate = total / evidence.version.records
    reasons = ", ".join(f"{count} {reason}" for reason, count in by_reason)
    summary = f"{total:,} of {evidence.version.records:,} records ({rate:.2%}; at most {gate.rate_max:.2%} allowed)"
    return Verdict(
        check="dead_letters",
        passed=rate <= gate.rate_max,
        blocking=gate.blocking,
        summary=f"{summary}: {reasons}" if reasons else summary,
        numbers={"dead_letters": total, "rate": round(rate, 6), "by_reason": {str(r): int(n) for r, n in by_reason}},
        thresholds={"rate_max": gate.rate_max},
        example_ids=evidence.texts("SELECT record_id FROM dead_letters ORDER BY record_id"),
    )
