"""Prompts begin with the same tokens for every record, and record text never becomes a control token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_assets.engine.encoder import PromptFormat, ScriptedEncoder, TokenizerEncoder
from batch_assets.errors import ModelError
from batch_assets.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own future

INSTRUCTION = "Answer in JSON."
MODEL = Settings().models.expanduser() / "smollm2-135m-instruct"
NO_SYSTEM_ROLE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def encoders() -> dict[PromptFormat, TokenizerEncoder]:
    return {
        "chat": TokenizerEncoder(MODEL, instruction=INSTRUCTION, prompt_format="chat"),
        "plain": TokenizerEncoder(MODEL, instruction=INSTRUCTION, prompt_format="plain"),
    }


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    """A copy of the model directory without weights, to be changed by a test."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"):
        shutil.copy(MODEL / name, tmp_path / name)
    return tmp_path


def decode(tokens: tuple[int, ...]) -> str:
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(MODEL).decode(tokens))


@pytest.mark.parametrize("prompt_format", ["chat", "plain"])
@given(first=st.text(min_size=1), second=st.text(min_size=1))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_prompts_share_prefix_and_suffix(
    encoders: dict[PromptFormat, TokenizerEncoder], prompt_format: PromptFormat, first: str, second: str
) -> None:
    """Whatever the records hold, only the tokens of their own text differ."""
    encoder = encoders[prompt_format]
    bare = encoder.encode("")
    prompts = [encoder.encode(first), encoder.encode(second)]
    prefix = 0
    while prefix < len(bare) and all(prompt[prefix] == bare[prefix] for prompt in prompts):
        prefix += 1
    suffix = len(bare) - prefix
    assert encoder.overhead_tokens == len(bare)
    for prompt in prompts:
        assert prompt[len(prompt) - suffix :] == bare[prefix:]


@pytest.mark.case("C04")
@pytest.mark.parametrize("prompt_format", ["chat", "plain"])
def test_control_tokens_in_a_record_are_plain_text(
    encoders: dict[PromptFormat, TokenizerEncoder], prompt_format: PromptFormat
) -> None:
    """A record that contains every control-token string gets none of their ids."""
    encoder = encoders[prompt_format]
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(encoder.control_tokens)
    hostile = " ".join(encoder.control_tokens)
    record_tokens = encoder.encode(hostile)
    control_ids = set(range(len(encoder.control_tokens)))  # this tokenizer has them first
    bare = [token for token in encoder.encode("") if token in control_ids]
    assert [token for token in record_tokens if token in control_ids] == bare
    assert hostile in decode(record_tokens)


def test_chat_uses_the_models_template(encoders: dict[PromptFormat, TokenizerEncoder]) -> None:
    """The instruction is the system message, the record the user's, and the model speaks next."""
    assert decode(encoders["chat"].encode("my record")) == (
        "<|im_start|>system\nAnswer in JSON.<|im_end|>\n<|im_start|>user\nmy record<|im_end|>\n<|im_start|>assistant\n"
    )


def test_plain_is_instruction_then_record(encoders: dict[PromptFormat, TokenizerEncoder]) -> None:
    """The plain format adds an empty line between the two, and nothing else."""
    assert decode(encoders["plain"].encode("Ticket: a\nAnswer:")) == "Answer in JSON.\n\nTicket: a\nAnswer:"


def test_plain_begins_as_the_tokenizer_would(tokenizer_dir: Path) -> None:
    """Where the tokenizer puts a start-of-text token before every text, the plain format has it too."""
    content = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    start = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (tokenizer_dir / "tokenizer.json").write_text(json.dumps(content))
    encoder = TokenizerEncoder(tokenizer_dir, instruction=INSTRUCTION, prompt_format="plain")
    assert decode(encoder.encode("my record")) == "<|im_start|>Answer in JSON.\n\nmy record"


def test_a_template_without_system_role(tokenizer_dir: Path) -> None:
    """Where the template refuses a system message, the instruction heads the user's."""
    (tokenizer_dir / "chat_template.jinja").write_text(NO_SYSTEM_ROLE)
    encoder = TokenizerEncoder(tokenizer_dir, instruction=INSTRUCTION, prompt_format="chat")
    assert decode(encoder.encode("my record")) == (
        "<|im_start|>user\nAnswer in JSON.\n\nmy record<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_digest_follows_what_is_rendered(tokenizer_dir: Path) -> None:
    """Another template or instruction has another digest; the same ones have the same."""

    def digest(instruction: str) -> str:
        return TokenizerEncoder(tokenizer_dir, instruction=instruction, prompt_format="chat").template_digest()

    before = digest(INSTRUCTION)
    assert digest(INSTRUCTION) == before
    assert digest(f"{INSTRUCTION} Now.") != before
    (tokenizer_dir / "chat_template.jinja").write_text(NO_SYSTEM_ROLE)
    assert digest(INSTRUCTION) != before


def test_a_missing_template_is_named(tokenizer_dir: Path) -> None:
    """Without a chat template the chat format is refused, and the plain one works."""
    (tokenizer_dir / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"no chat template.*'plain'"):
        TokenizerEncoder(tokenizer_dir, instruction=INSTRUCTION, prompt_format="chat")
    TokenizerEncoder(tokenizer_dir, instruction=INSTRUCTION, prompt_format="plain")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """A directory without a tokenizer is refused with what to do."""
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*make model"):
        TokenizerEncoder(tmp_path, instruction=INSTRUCTION, prompt_format="plain")


def test_a_broken_tokenizer_is_named(tokenizer_dir: Path) -> None:
    """A tokenizer file that does not load is one clear error."""
    (tokenizer_dir / "tokenizer.json").write_text(json.dumps({"model": "?"}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        TokenizerEncoder(tokenizer_dir, instruction=INSTRUCTION, prompt_format="plain")


@given(text=st.text())
def test_the_scripted_encoder_counts_bytes(text: str) -> None:
    """Without a tokenizer four bytes are one token, and different texts have different tokens."""
    encoder = ScriptedEncoder(instruction="12345")
    assert encoder.overhead_tokens == 2
    assert len(encoder.encode(text)) == 2 + -(-len(text.encode()) // 4)
    assert encoder.control_tokens == ()
