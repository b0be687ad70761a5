"""Prompt texts into tokens, so that record text can never act as an instruction to the tokenizer.

The instruction and everything the chat template adds are tokenized once, control tokens recognised.
A record is tokenized on its own with control-token strings as plain text, and put between. So every
prompt of a job starts with the very same tokens, which is what the engine's prefix cache needs.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any, Literal

from batch_assets.errors import ModelError

PromptFormat = Literal["chat", "plain"]

_PLACEHOLDER = "\x02record\x03"  # stands for the record while the template is rendered
_PROBE_RECORD = "probe record"
_BYTES_PER_TOKEN = 4  # the usual rule of thumb, for an engine without a tokenizer


class TokenizerEncoder:
    """PromptEncoder with the tokenizer and chat template of a local model directory.

    Raises ModelError when the directory lacks a fast tokenizer or, for format "chat", a chat template.
    """

    def __init__(self, model_dir: Path | str, *, instruction: str, prompt_format: PromptFormat) -> None:
        self._tokenizer = _load_tokenizer(Path(model_dir))
        self._prefix_text, self._suffix_text = _frame(self._tokenizer, instruction, prompt_format, model_dir)
        self._prefix = self._encode(self._prefix_text, as_plain_text=False)
        self._suffix = self._encode(self._suffix_text, as_plain_text=False)

    def encode(self, record_text: str) -> tuple[int, ...]:
        return self._prefix + self._encode(record_text, as_plain_text=True) + self._suffix

    @property
    def overhead_tokens(self) -> int:
        return len(self._prefix) + len(self._suffix)

    @property
    def control_tokens(self) -> tuple[str, ...]:
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple(str(token) for token in added if token.special)

    def template_digest(self) -> str:
        """sha256 over the whole prompt of a probe record, as rendered for this model."""
        return hashlib.sha256(f"{self._prefix_text}{_PROBE_RECORD}{self._suffix_text}".encode()).hexdigest()

    def _encode(self, text: str, *, as_plain_text: bool) -> tuple[int, ...]:
        encoded = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=as_plain_text, return_attention_mask=False
        )
        return tuple(encoded["input_ids"])


class ScriptedEncoder:
    """PromptEncoder for the scripted engine: no model, one token for every four bytes of UTF-8."""

    def __init__(self, *, instruction: str) -> None:
        self._prefix = _byte_tokens(instruction)

    def encode(self, record_text: str) -> tuple[int, ...]:
        return self._prefix + _byte_tokens(record_text)

    @property
    def overhead_tokens(self) -> int:
        return len(self._prefix)

    @property
    def control_tokens(self) -> tuple[str, ...]:
        return ()

    def template_digest(self) -> str:
        """There is no template: constant."""
        return hashlib.sha256(b"scripted").hexdigest()


def _byte_tokens(text: str) -> tuple[int, ...]:
    data = text.encode()
    whole, rest = divmod(len(data), _BYTES_PER_TOKEN)
    tokens = struct.unpack_from(f">{whole}I", data)
    return (*tokens, int.from_bytes(data[-rest:])) if rest else tokens


def _load_tokenizer(model_dir: Path) -> Any:
    """The model's tokenizer. Imported here: transformers takes seconds to import."""
    if not (model_dir / "tokenizer.json").is_file():
        raise ModelError(
            f"The model directory {model_dir} has no tokenizer.json, so prompts cannot be turned into tokens. "
            "Save the model's fast tokenizer there (for the demo's model run `make model`)."
        )
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # whatever the library makes of a broken file
        raise ModelError(
            f"The tokenizer in {model_dir} cannot be loaded ({type(error).__name__}: {error}). Restore its files."
        ) from error


def _frame(tokenizer: Any, instruction: str, prompt_format: PromptFormat, model_dir: Path | str) -> tuple[str, str]:
    """The texts before and after the record: the same for every record of a job."""
    if prompt_format == "plain":
        return f"{_start_of_text(tokenizer)}{instruction}\n\n", ""
    if not tokenizer.chat_template:
        raise ModelError(
            f"The model in {model_dir} has no chat template, so prompt.format 'chat' cannot be used with it. "
            "Set prompt.format to 'plain', or add the model's chat_template.jinja."
        )
    before, found, after = _render_chat(tokenizer, instruction).partition(_PLACEHOLDER)
    if not found or _PLACEHOLDER in after:
        raise ModelError(
            f"The chat template in {model_dir} does not repeat a user message exactly once and unchanged, so "
            "record text cannot be kept apart from it. Set prompt.format to 'plain' or use another template."
        )
    return before, after


def _start_of_text(tokenizer: Any) -> str:
    """The control token that this tokenizer puts before every text, if any. Some models fail without it."""
    begins = tokenizer("")["input_ids"][:1]
    return str(tokenizer.bos_token) if begins and begins[0] == tokenizer.bos_token_id else ""


def _render_chat(tokenizer: Any, instruction: str) -> str:
    """The chat with a placeholder for the record; the instruction goes where the template allows."""
    from jinja2.exceptions import TemplateError

    system = [{"role": "system", "content": instruction}, {"role": "user", "content": _PLACEHOLDER}]
    user_only = [{"role": "user", "content": f"{instruction}\n\n{_PLACEHOLDER}"}]
    try:
        rendered = str(tokenizer.apply_chat_template(system, tokenize=False, add_generation_prompt=True))
        if instruction in rendered:
            return rendered
    except TemplateError:
        pass  # the template knows no system role
    return str(tokenizer.apply_chat_template(user_only, tokenize=False, add_generation_prompt=True))
