"""Evaluation: how often does the version agree with labels that people gave?

A golden record without a result (a dead letter) counts as wrong: nobody got an answer for it. Says
nothing about records that differ from the golden ones.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from batch_assets.core.sql_text import quote_name
from batch_assets.core.statistics import wilson_interval
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import EXAMPLES, Evidence


def evaluation(evidence: Evidence) -> Verdict:
    """Accuracy over the golden records of this snapshot, with its confidence interval."""
    gate, field = evidence.gate.evaluation, evidence.evaluated_field
    if gate is None or field is None:
        raise ValueError("the evaluation check needs gate.evaluation in the spec")
    compared = _compare(evidence, field)
    correct = sum(1 for _, label, answer in compared if answer == label)
    accuracy = correct / len(compared) if compared else 0.0
    low, high = wilson_interval(correct, len(compared))
    passed = bool(compared) and accuracy >= gate.accuracy_min
    wrong = tuple(record_id for record_id, label, answer in compared if label != answer)
    summary = (
        f"{correct} of {len(compared)} golden records agree on {field} ({accuracy:.0%}; at least {gate.accuracy_min:.0%} asked)"
        if compared
        else f"none of the {len(evidence.golden)} golden records is in the snapshot"
    )
    return Verdict(
        check="evaluation",
        passed=passed,
        blocking=gate.blocking,
        summary=summary,
        numbers={
            "field": field,
            "golden": len(compared),
            "golden_outside_snapshot": len(evidence.golden) - len(compared),
            "correct": correct,
            "unanswered": sum(1 for _, _, answer in compared if answer is None),
            "accuracy": round(accuracy, 4),
            "accuracy_interval_95": [round(low, 4), round(high, 4)],
        },
        thresholds={"accuracy_min": gate.accuracy_min},
        example_ids=wrong[:EXAMPLES],
    )


def _compare(evidence: Evidence, field: str) -> list[tuple[str, Any, Any]]:
    """(record id, label, answer or None) of the golden records that are in the snapshot."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    golden = pa.table({"id": pa.array(list(evidence.golden), pa.string())})
    evidence.connection.register("golden", golden)
    rows = evidence.connection.execute(
        f"""
        SELECT golden.id, results.{quote_name(field)}
        FROM golden
        SEMI JOIN snapshot ON snapshot.{record_id}::VARCHAR = golden.id
        LEFT JOIN results ON results.{record_id}::VARCHAR = golden.id
        ORDER BY golden.id
        """
    ).fetchall()
    return [(str(id_), evidence.golden[id_], answer) for id_, answer in rows]
