"""The prompt file, and rendering a record with it.

`prompt.md` is the instruction, then a line that is exactly `<!-- record -->`, then the record
template with `{{ column }}` placeholders. The instruction is the same for every record and comes
first, so the engine's prefix cache serves it. Rendering is a pure function of (template, record):
no clock, no environment, and text that looks like a placeholder is never expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECORD_MARKER = "<!-- record -->"
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))  # zero-width, and not white space to Python
_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")


class PromptError(ValueError):
    """The prompt file cannot be used; the message says what is wrong."""


class RenderError(ValueError):
    """This record cannot be put into the template."""


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """A parsed prompt file."""

    instruction: str
    record_template: str
    columns: tuple[str, ...]  # in order of first use

    def render_record(self, record: Mapping[str, Any]) -> str:
        """The record's part of the prompt. Null becomes empty text.

        Raises RenderError for a value that is not plain: a list, a struct, bytes.
        """

        def fill(match: re.Match[str]) -> str:
            value = record[match.group(1)]
            if value is None:
                return ""
            if isinstance(value, str | int | float) or hasattr(value, "isoformat"):
                return str(value)
            raise RenderError(f"column {match.group(1)} holds a {type(value).__name__}, which cannot be rendered")

        return _PLACEHOLDER.sub(fill, self.record_template)


def parse_prompt(text: str) -> PromptTemplate:
    """Split a prompt file into instruction and record template.

    Raises PromptError when the marker is missing or doubled, or the template names no column.
    """
    lines = text.split("\n")
    at = [number for number, line in enumerate(lines) if line.strip() == RECORD_MARKER]
    if len(at) != 1:
        raise PromptError(
            f"needs exactly one line {RECORD_MARKER!r} between the instruction and the record template, found {len(at)}"
        )
    instruction = "\n".join(lines[: at[0]]).strip()
    template = "\n".join(lines[at[0] + 1 :]).strip("\n")
    columns = tuple(dict.fromkeys(_PLACEHOLDER.findall(template)))
    if not instruction:
        raise PromptError(f"has no instruction above the line {RECORD_MARKER!r}")
    if not columns:
        raise PromptError(f"names no column below the line {RECORD_MARKER!r}; write for example {{{{ body }}}}")
    return PromptTemplate(instruction=instruction, record_template=template, columns=columns)


def is_empty_input(record: Mapping[str, Any], text_columns: tuple[str, ...], control_tokens: tuple[str, ...]) -> bool:
    """Whether the record has no text of its own: null, white space or control-token strings only."""
    for column in text_columns:
        value = record.get(column)
        text = "" if value is None else str(value)
        for token in control_tokens:
            text = text.replace(token, "")
        if text.translate(_INVISIBLE).strip():
            return False
    return True
