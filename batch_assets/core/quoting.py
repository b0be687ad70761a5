"""Record ids and other foreign texts in places of our own: messages, listings, pictures."""

from __future__ import annotations

import json

QUOTED_CHARS_MAX = 80


def printable(value: object, *, chars_max: int | None = None) -> str:
    """Text that cannot move the cursor, ring the bell or recolour a terminal; cut where it gets too long."""
    text = str(value)
    if chars_max is not None and len(text) > chars_max:
        text = f"{text[: chars_max - 1]}…"
    return "".join(char if char.isprintable() else " " for char in text)


def quoted(text: str) -> str:
    """The text in quotes, on one line, with what does not print as escapes; cut where it gets too long."""
    return repr(text) if len(text) <= QUOTED_CHARS_MAX else f"{text[: QUOTED_CHARS_MAX - 1]!r}…"


def plain_words(value: object) -> str:
    """A foreign text inside of a sentence of ours, with nothing in it that any page would take for markup."""
    text = printable(value, chars_max=QUOTED_CHARS_MAX)
    return "".join(char if char.isalnum() or char in " -_.,:/+…" else "·" for char in text)


def legible(text: str) -> str:
    """What does not print as an escape: a direction mark in an id would turn our own numbers around."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
