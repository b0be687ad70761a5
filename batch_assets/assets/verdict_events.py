"""A verdict as Dagster keeps it: numbers and thresholds as metadata, ERROR when it blocks."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType

import dagster as dg

from batch_assets.assets.texts import clip, metadata_value
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.pictures import pictures_of


def check_result(
    key: dg.AssetKey, verdict: Verdict, report: Mapping[str, dg.MetadataValue] = MappingProxyType({})
) -> dg.AssetCheckResult:
    """What a check step yields; `report` says where the version's report is."""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=verdict.check,
        passed=verdict.passed,
        severity=_severity(verdict),
        description=verdict.summary,
        metadata={**report, **_metadata(verdict)},
    )


def standing_evaluation(key: dg.AssetKey, verdict: Verdict) -> dg.AssetCheckEvaluation:
    """A verdict given before, as an event that any step may log."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=verdict.check,
        passed=verdict.passed,
        severity=_severity(verdict),
        description=verdict.summary,
        metadata=_metadata(verdict),
    )


def _severity(verdict: Verdict) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if verdict.blocking else dg.AssetCheckSeverity.WARN


def _metadata(verdict: Verdict) -> Mapping[str, dg.MetadataValue]:
    return {
        **{name: metadata_value(value) for name, value in verdict.numbers.items()},
        **{f"threshold: {name}": metadata_value(value) for name, value in verdict.thresholds.items()},
        **{f"picture: {name}": picture for name, picture in pictures(verdict).items()},
        "example_record_ids": metadata_value([clip(one) for one in verdict.example_ids]),
    }


def pictures(verdict: Verdict) -> dict[str, dg.MetadataValue]:
    """The verdict's pictures by name. As images: what is written in an image runs no script."""
    return {name: _picture(name, svg) for name, svg in pictures_of(verdict).items()}


def _picture(name: str, svg: str) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![{name}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
