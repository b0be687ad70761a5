"""Record ids and other foreign texts inside our own messages."""

from __future__ import annotations

QUOTED_CHARS_MAX = 80


def quoted(text: str) -> str:
    """The text in quotes, on one line, with what does not print as escapes; cut where it gets too long."""
    return repr(text) if len(text) <= QUOTED_CHARS_MAX else f"{text[: QUOTED_CHARS_MAX - 1]!r}…"
