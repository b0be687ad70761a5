"""Pictures of verdicts, made from their numbers alone: for Dagster's pages and for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batch_assets.core.verdicts import Verdict
from batch_assets.validation.confusion_picture import confusion
from batch_assets.validation.drift_bars import drift_bars

# Per check: the name of a picture, the numbers without which there is none, and what draws it from all numbers.
PICTURES: dict[str, tuple[tuple[str, str, Callable[[Mapping[str, Any]], str]], ...]] = {
    "drift": (("drift", "distribution", drift_bars),),
    "evaluation": (("confusion", "confusion", lambda numbers: confusion(numbers["confusion"])),),
}


def pictures_of(verdict: Verdict) -> dict[str, str]:
    """SVG texts by name; nothing when the verdict holds no numbers to draw."""
    wanted = PICTURES.get(verdict.check, ())
    return {name: draw(verdict.numbers) for name, key, draw in wanted if verdict.numbers.get(key)}
