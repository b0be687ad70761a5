"""The category distribution before and after, as bars in SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from batch_assets.core.quoting import printable

CATEGORIES_MAX = 20  # more bars than that cannot be read
_LABEL_CHARS = 30
_LEFT, _WIDTH, _RIGHT, _TOP, _BAR = 210, 360, 70, 46, 13  # pixels
_BEFORE, _AFTER = "#9aa5b1", "#3b5bdb"
_FONT = 'font-family="sans-serif" font-size="12"'


def drift_bars(numbers: Mapping[str, Any]) -> str:
    """Shares of the rows per category, the published version's beside this one's; names are escaped here."""
    found, before = numbers["distribution"], numbers.get("baseline_distribution")
    ranked = sorted({*found, *(before or {})}, key=lambda name: (-found.get(name, 0), name))[:CATEGORIES_MAX]
    sides = [(before, _BEFORE)] if before else []
    sides.append((found, _AFTER))
    row = _BAR * len(sides) + 10
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + row * len(ranked) + 10
    longest = max((_share(counts, name) for counts, _ in sides for name in ranked), default=0) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" {_FONT}>',
        f'<title>Rows per {_short(numbers.get("field", ""))}</title><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="16" fill="#666">% of rows per {_short(numbers.get("field", ""))}</text>',
        _legend(numbers.get("baseline", ""), bool(before)),
    ]
    for number, name in enumerate(ranked):
        top = _TOP + row * number
        middle = top + _BAR * len(sides) // 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{_short(name)}</text>')
        for place, (counts, colour) in enumerate(sides):
            parts.append(_bar(top + _BAR * place, _share(counts, name), longest, colour))
    return "".join([*parts, "</svg>"])


def _bar(top: int, share: float, longest: float, colour: str) -> str:
    length = round(_WIDTH * share / longest, 1)
    return (
        f'<rect x="{_LEFT}" y="{top}" width="{length}" height="{_BAR - 2}" fill="{colour}"/>'
        f'<text x="{_LEFT + length + 5}" y="{top + _BAR - 3}" font-size="11">{100 * share:.1f}</text>'
    )


def _legend(baseline: Any, has_before: bool) -> str:
    if not has_before:
        return ""
    return (
        f'<rect x="{_LEFT}" y="26" width="10" height="10" fill="{_BEFORE}"/>'
        f'<text x="{_LEFT + 15}" y="35">before: {_short(baseline)}</text>'
        f'<rect x="{_LEFT + 230}" y="26" width="10" height="10" fill="{_AFTER}"/><text x="{_LEFT + 245}" y="35">after</text>'
    )


def _share(counts: Mapping[str, int], name: str) -> float:
    return float(counts.get(name, 0) / (sum(counts.values()) or 1))


def _short(text: Any) -> str:
    return escape(printable(text, chars_max=_LABEL_CHARS))
