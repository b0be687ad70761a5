"""Verdicts of the checks, and the rule that turns them into permission to publish (invariant I3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CHECKS = ("coverage", "schema", "drift", "evaluation", "dead_letters")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one check found."""

    check: str
    passed: bool
    blocking: bool
    summary: str  # one sentence for people
    numbers: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    example_ids: tuple[str, ...] = ()


def refusals(verdicts: Sequence[Verdict], required: Sequence[str]) -> tuple[str, ...]:
    """Why a version with these verdicts must not be published; empty when it may.

    A required check without a verdict refuses: silence is not consent.
    """
    by_name = {verdict.check: verdict for verdict in verdicts}
    missing = [
        f"{name}: no verdict on its present content by the present gate" for name in required if name not in by_name
    ]
    failed = [f"{verdict.check}: {verdict.summary}" for verdict in verdicts if verdict.blocking and not verdict.passed]
    return tuple(missing + failed)
