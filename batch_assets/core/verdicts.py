"""Verdicts of the checks, and the rule that turns them into permission to publish (invariant I3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CHECKS = ("coverage", "schema", "drift", "evaluation", "dead_letters", "access_labels", "one_recipe")

# Whole, of one recipe, and no more open than its source: nobody's reason is good enough.
NEVER_OVERRIDDEN = ("coverage", "access_labels", "one_recipe")


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


def refusals(verdicts: Sequence[Verdict], required: Sequence[str], *, override: bool = False) -> tuple[str, ...]:
    """Why a version with these verdicts must not be published; empty when it may.

    A required check without a verdict refuses: silence is not consent, and there is nothing that a
    person who overrides could have looked at. An override sets failed checks aside, but for
    `NEVER_OVERRIDDEN`: behind those, readers would not see one whole result that they may see.
    """
    by_name = {verdict.check: verdict for verdict in verdicts}
    missing = [
        f"{name}: no verdict on its present content by the present gate" for name in required if name not in by_name
    ]
    set_aside = overridable(verdicts) if override else ()
    hint = " (an override does not reach this check)" if override else ""
    failed = [
        f"{verdict.check}: {verdict.summary}{hint}"
        for verdict in verdicts
        if _stands_in_the_way(verdict) and verdict.check not in set_aside
    ]
    return tuple(missing + failed)


def overridable(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The checks that failed, block, and would be set aside by an override."""
    return tuple(
        verdict.check for verdict in verdicts if _stands_in_the_way(verdict) and verdict.check not in NEVER_OVERRIDDEN
    )


def _stands_in_the_way(verdict: Verdict) -> bool:
    return not verdict.passed and (verdict.blocking or verdict.check in NEVER_OVERRIDDEN)
