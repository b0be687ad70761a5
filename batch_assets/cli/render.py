"""What the commands print: tables for people, JSON for programs.

Record text and answers are untrusted: they are printed as plain text, with control characters and
markup taken out of their hands.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from batch_assets.core.quoting import printable
from batch_assets.core.verdicts import Verdict

# Without a terminal (a log, a pipe) rich would assume 80 columns and break half of the lines.
_WIDTH = None if sys.stdout.isatty() else 120
CELL_CHARS_MAX = 500  # of one text in a table; an id or an answer can be megabytes
_NOT_ASCII = re.compile(r"[^\n\x20-\x7e]+")
console = Console(highlight=False, soft_wrap=True, width=_WIDTH)


def talk_on_stderr() -> None:
    """From here on only JSON goes to standard output."""
    console.file = sys.stderr


def print_json(value: Any) -> None:
    """Machine-readable output; nothing else goes to standard output with it. What does not print is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(_NOT_ASCII.sub(_escaped, text) + "\n")


def _escaped(found: re.Match[str]) -> str:
    """JSON leaves C1 controls, direction marks and the like as they are, and they work on a terminal, too."""
    run = found.group()
    return run if run.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in run)


def warn(text: str) -> None:
    """One line on standard error, beside whatever the command prints."""
    sys.stderr.write(f"batch-assets: {printable(text)}.\n")


def say(text: str) -> None:
    """One plain line."""
    console.print(Text(printable(text)))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, one_line: bool = False) -> None:
    """A table that fits the terminal: long texts are wrapped, or cut to one line a row; JSON has them whole."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(Text(printable(column)), no_wrap=one_line, overflow="ellipsis" if one_line else "fold")
    for row in rows:
        grid.add_row(*(Text(printable("" if cell is None else cell, chars_max=CELL_CHARS_MAX)) for cell in row))
    console.print(grid, soft_wrap=False)


def verdict_table(verdicts: Sequence[Verdict]) -> None:
    """Each check with its verdict."""
    rows = [(verdict_word(verdict), verdict.check, verdict.summary) for verdict in verdicts]
    table(("verdict", "check", "found"), rows)


def verdict_word(verdict: Verdict) -> str:
    if verdict.passed:
        return "passed"
    return "FAILED" if verdict.blocking else "warned"


def override(found: Mapping[str, Any]) -> str:
    """Who has published against which checks, and why."""
    return f"{', '.join(found['checks'])} by {found['who']}: {found['reason']}"


def count(number: float | None, digits: int = 0) -> str:
    """A number with thousands separators; a dash for none."""
    return "-" if number is None else f"{number:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def numbers(values: Iterable[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def reasons(by_reason: Mapping[str, int]) -> str:
    """Dead letters by reason on one line."""
    return ", ".join(f"{number:,} {reason}" for reason, number in by_reason.items()) or "none"
