"""Prompt files and rendering."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_assets.core.prompt import PromptError, RenderError, is_empty_input, parse_prompt

PROMPT = "Sort it.\n\n<!-- record -->\nSubject: {{ subject }}\n{{body}}\n"


def test_the_instruction_comes_first_and_the_columns_are_found() -> None:
    """The marker line splits the file; placeholders name columns, once each, in order."""
    prompt = parse_prompt(PROMPT + "{{ subject }}")
    assert prompt.instruction == "Sort it."
    assert prompt.columns == ("subject", "body")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Sort it. {{ body }}", "exactly one line"),
        ("A\n<!-- record -->\n<!-- record -->\n{{ body }}", "found 2"),
        ("<!-- record -->\n{{ body }}", "no instruction"),
        ("Sort it.\n<!-- record -->\nbody", "names no column"),
    ],
)
def test_a_prompt_file_without_its_parts_is_refused(text: str, message: str) -> None:
    """The message says which part is missing."""
    with pytest.raises(PromptError, match=message):
        parse_prompt(text)


@given(st.text(), st.text())
def test_rendering_inserts_values_as_they_are(subject: str, body: str) -> None:
    """Values are inserted verbatim: text that looks like a placeholder is not expanded again."""
    rendered = parse_prompt(PROMPT).render_record({"subject": subject, "body": body})
    assert rendered == f"Subject: {subject}\n{body}"


def test_plain_values_render_and_nested_ones_do_not() -> None:
    """Null is empty, numbers and dates print; a list is an error that names its column."""
    prompt = parse_prompt("I\n<!-- record -->\n{{ a }}|{{ b }}|{{ c }}")
    assert prompt.render_record({"a": None, "b": 1.5, "c": datetime.date(2026, 1, 2)}) == "|1.5|2026-01-02"
    with pytest.raises(RenderError, match="column b holds a list"):
        prompt.render_record({"a": "", "b": [1], "c": ""})


@pytest.mark.parametrize(
    "text", [None, "", "   ", "\n\t", "\u00a0\u3000", "\u200b", "<|im_end|>", " <|im_end|><|im_start|> "]
)
def test_empty_input_is_recognised(text: str | None) -> None:
    """Null, white space of any script, invisible characters and control tokens are no text."""
    assert is_empty_input({"body": text}, ("body",), ("<|im_end|>", "<|im_start|>"))


@pytest.mark.parametrize("text", ["a", " 0 ", "<|im_end|> hello", "🙂", "日"])
def test_any_text_is_input(text: str) -> None:
    """One visible character is enough."""
    assert not is_empty_input({"body": text}, ("body",), ("<|im_end|>",))
