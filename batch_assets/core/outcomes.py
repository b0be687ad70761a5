"""What can become of a record, and who decides it (invariants I1 and I4).

A record ends in exactly one outcome: a result or a dead letter. An attempt that fails is not an
outcome; the third one makes a dead letter, a permanent failure makes one at once. Interruptions
(preemption, a lost lease, a store that is away) are not failures and cost no attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ATTEMPTS_MAX = 3


class Reason(StrEnum):
    """Why an attempt failed; also the reason on a dead letter."""

    INPUT_TOO_LONG = "input_too_long"
    EMPTY_INPUT = "empty_input"
    RENDER_ERROR = "render_error"
    REJECTED = "rejected"  # the engine says that this prompt can never be answered
    TRUNCATED = "truncated"  # the output cap cut the answer off
    INVALID_OUTPUT = "invalid_output"  # does not satisfy the output schema
    ENGINE_ERROR = "engine_error"
    TIMEOUT = "timeout"
    ENGINE_KILLER = "engine_killer"

    @property
    def permanent(self) -> bool:
        """Trying again cannot help."""
        return self in _PERMANENT


_PERMANENT = frozenset({Reason.INPUT_TOO_LONG, Reason.EMPTY_INPUT, Reason.RENDER_ERROR, Reason.REJECTED})


@dataclass(frozen=True, kw_only=True)
class Result:
    """A valid answer, ready to be stored."""

    record_id: str
    payload: str  # the answer's JSON, as the engine wrote it, proved valid
    attempt: int
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One attempt that did not give a valid answer."""

    record_id: str
    attempt: int
    reason: Reason
    error: str
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def is_final(self) -> bool:
        """This failure makes a dead letter."""
        return self.reason.permanent or self.attempt >= ATTEMPTS_MAX


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A record given up, as listed to people."""

    record_id: str
    shard: int
    reason: str
    error: str
    attempts: int
    at: str
