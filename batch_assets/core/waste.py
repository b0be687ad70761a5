"""Where work goes that ends in no stored result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a request gave no stored result."""

    FAILED_ATTEMPT = "failed_attempt"  # answered, but not with a valid answer
    TIMEOUT = "timeout"  # aborted: too long in the engine
    ENGINE_DEATH = "engine_death"  # in the engine when it died
    LOST_LEASE = "lost_lease"  # aborted, or answered and refused, because the lease was over
    PREEMPTED = "preempted"  # still in the engine when the worker had to go
    DUPLICATE = "duplicate"  # answered, but somebody else's result was there first


@dataclass(frozen=True)
class Wasted:
    """Requests that gave no result, and the tokens known to have gone into them.

    What a request had generated when it was aborted is not known; its prompt counts in full.
    """

    records: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Wasted) -> Wasted:
        return Wasted(
            self.records + other.records,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )
