"""The confusion matrix as SVG: labels by people down, answers across, darker where a row goes most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from batch_assets.core.quoting import printable

_CELL, _LEFT, _TOP = 46, 170, 120  # pixels
_LABEL_CHARS = 22
_RIGHT, _WRONG = "43, 138, 62", "201, 42, 42"  # the diagonal, and all else
_FONT = 'font-family="sans-serif" font-size="12"'


def confusion(matrix: Mapping[str, Any]) -> str:
    """A picture of `numbers["confusion"]`; its labels are foreign text, escaped here."""
    labels, answers, counts = matrix["labels"], matrix["answers"], matrix["counts"]
    width, height = _LEFT + _CELL * len(answers) + 60, _TOP + _CELL * len(labels) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" {_FONT}>',
        '<title>Golden labels by answers</title><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT - 8}" y="{_TOP - 8}" text-anchor="end" fill="#666">label ↓ answer →</text>',
        *(_column(number, answer) for number, answer in enumerate(answers)),
        *(_row(number, label, answers, counts[number]) for number, label in enumerate(labels)),
        "</svg>",
    ]
    return "".join(parts)


def _column(number: int, answer: str) -> str:
    x, y = _LEFT + _CELL * number + _CELL // 2, _TOP - 8
    return f'<text x="{x}" y="{y}" transform="rotate(-40 {x} {y})">{_short(answer)}</text>'


def _row(number: int, label: str, answers: Sequence[str], counts: Sequence[int]) -> str:
    y, total = _TOP + _CELL * number, sum(counts) or 1
    cells = [
        _cell(_LEFT + _CELL * column, y, count, count / total, _RIGHT if answer == label else _WRONG)
        for column, (answer, count) in enumerate(zip(answers, counts, strict=True))
    ]
    name = f'<text x="{_LEFT - 8}" y="{y + _CELL // 2 + 4}" text-anchor="end">{_short(label)}</text>'
    return name + "".join(cells)


def _cell(x: int, y: int, count: int, share: float, colour: str) -> str:
    middle = f'x="{x + _CELL // 2}" y="{y + _CELL // 2 + 4}" text-anchor="middle"'
    ink = "white" if share > 0.6 else "black"
    return (
        f'<rect x="{x}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}" fill="rgb({colour})" fill-opacity="{share:.2f}" '
        f'stroke="#ddd"/><text {middle} fill="{ink}">{count}</text>'
    )


def _short(text: str) -> str:
    return escape(printable(text, chars_max=_LABEL_CHARS))
