"""What the worker asks of an engine, and nothing else.

An engine turns prompts into texts. It knows nothing of shards, leases or storage; the worker
knows nothing of tensors. Both engines, vLLM and the scripted one, pass the same contract suite
(`assets_tests/contract/test_engine_contract.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length", "error", "rejected"]


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One prompt to answer."""

    request_id: str  # unique among the requests in flight
    record_id: str  # whose record it is; engines use it for logs and scripted faults only
    attempt: int  # 1 for the first try at this record
    prompt_token_ids: tuple[int, ...]
    output_tokens_max: int


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The end of one request: an answer, or the reason why there is none."""

    request_id: str
    text: str
    finish_reason: FinishReason  # "rejected": this prompt can never be answered
    error: str | None = None  # set for "error" and "rejected"
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens served by the prefix cache
    output_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What ran, as stored with every result."""

    kind: str  # "vllm" or "scripted"
    version: str
    device: str  # "cpu", or the accelerator's name
    in_flight_max: int  # how many requests keep the engine's batch full


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """Everything needed to start an engine. Plain values; printable."""

    model_dir: str | None
    dtype: str  # "float32", "bfloat16", "float16"
    quantization: str | None
    context_tokens_max: int  # input cap + longest output
    seed: int
    temperature: float
    stop: tuple[str, ...]
    json_schema: Mapping[str, Any]  # constrains decoding
    options: Mapping[str, Any] = field(default_factory=dict)  # operational: batch size, memory, ...


class Engine(Protocol):
    """One warm engine. Used from one thread; `kill` may come from any."""

    def start(self, deadline_s: float) -> EngineInfo:
        """Load the model; return when requests can be taken.

        Raises EngineUnavailable when it is not ready within `deadline_s`.
        """

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests. Never blocks for long; raises EngineDied if the engine is gone."""

    def poll(self, timeout_s: float) -> list[Completion]:
        """Completions since the last call; waits up to `timeout_s` for the first.

        Every submitted request ends in exactly one completion, unless it is aborted or the engine
        dies. Raises EngineDied when the engine is gone; requests in flight then have no answer.
        """

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget these requests; they will not be answered. Unknown ids are ignored."""

    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that the engine runs in besides this one; what to end if we cannot."""

    def shutdown(self, deadline_s: float) -> None:
        """Stop the engine and its processes; kill what has not ended by the deadline. Idempotent."""


class PromptEncoder(Protocol):
    """Turns prompt texts into the engine's tokens. Pure: same text, same tokens."""

    def encode(self, record_text: str) -> tuple[int, ...]:
        """Tokens of the whole prompt: the shared prefix, the record as plain text, the suffix.

        Control-token strings inside `record_text` become ordinary text.
        """

    @property
    def overhead_tokens(self) -> int:
        """Tokens that every prompt has besides the record's own."""

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Strings that the model treats as control tokens, e.g. `<|im_end|>`."""
