"""Hostile texts on their way into a prompt, and categories on their way into a picture."""

from __future__ import annotations

import base64
import time
from xml.etree import ElementTree

import dagster as dg
import pytest

from assets_tests.hostile.corpus import HUGE, TEXTS
from batch_assets.assets.verdict_events import pictures
from batch_assets.core.prompt import parse_prompt
from batch_assets.core.verdicts import Verdict
from batch_assets.engine.encoder import TokenizerEncoder
from batch_assets.settings import Settings

MODEL = Settings().models.expanduser() / "smollm2-135m-instruct"
HUGE_S = 60.0  # on a busy machine; a quadratic tokenizer would take hours


def test_a_text_is_put_into_the_template_as_it_is() -> None:
    """Placeholders, escapes and backslashes inside a value are not looked at again."""
    template = parse_prompt("Instruct.\n<!-- record -->\n{{ subject }}|{{ body }}|{{ subject }}")
    for text in TEXTS.values():
        assert template.render_record({"subject": text, "body": "{{ subject }}"}) == f"{text}|{{{{ subject }}}}|{text}"


@pytest.mark.filterwarnings("ignore")  # transformers warns of its own future
def test_no_text_becomes_a_control_token() -> None:
    """Between the instruction and its end, a record has only the tokens of plain text; megabytes take seconds."""
    encoder = TokenizerEncoder(MODEL, instruction="Answer.", prompt_format="chat")
    bare = encoder.encode("")
    control = set(range(len(encoder.control_tokens)))  # this tokenizer has them first
    in_frame = [token for token in bare if token in control]
    for text in TEXTS.values():
        assert [token for token in encoder.encode(text) if token in control] == in_frame
    started = time.monotonic()
    for text in HUGE.values():
        assert len(encoder.encode(text)) > len(bare) + len(text) // 10
    assert time.monotonic() - started < HUGE_S


@pytest.mark.filterwarnings("error")
def test_a_picture_of_hostile_categories_is_drawn() -> None:
    """Twenty bars at a time, whatever their names: no markup, no missing glyph, no name that fills the page."""
    texts = list(dict.fromkeys([*HUGE.values(), *TEXTS.values()]))
    for first in range(0, len(texts), 20):
        counts = {text: 1 + number for number, text in enumerate(texts[first : first + 20])}
        verdict = Verdict(
            check="drift",
            passed=True,
            blocking=True,
            summary="",
            numbers={"field": "$x^{", "distribution": counts, "baseline_distribution": counts, "baseline": "_v0_"},
            thresholds={},
        )
        picture = pictures(verdict)["drift"]
        assert isinstance(picture, dg.MarkdownMetadataValue)
        head, _, encoded = str(picture.value).removesuffix(")").partition(",")
        assert head == "![drift](data:image/svg+xml;base64"
        drawn = ElementTree.fromstring(base64.b64decode(encoded))
        assert {element.tag.rpartition("}")[2] for element in drawn.iter()} == {"svg", "title", "rect", "text"}
        assert len(encoded) < 500_000
