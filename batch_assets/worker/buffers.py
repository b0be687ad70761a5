"""What waits for the committer: messages from the worker's loop, and what is unwritten of each lease."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.waste import Cause, Wasted


@dataclass
class Buffer:
    """What has not been written yet of one lease."""

    lease: Lease
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    waste: dict[str, Wasted] = field(default_factory=dict)  # the lease's totals
    waste_changed: bool = False

    def add_waste(self, cause: Cause, wasted: Wasted) -> None:
        if wasted.records:
            self.waste[cause] = self.waste.get(cause, Wasted()) + wasted
            self.waste_changed = True

    def __len__(self) -> int:
        return len(self.results) + len(self.failures)


@dataclass(frozen=True)
class Answered:
    """One record has an outcome, or an attempt has failed."""

    lease: Lease
    outcome: Result | Failure


@dataclass(frozen=True)
class WasteNote:
    """Work that ended in nothing."""

    lease: Lease
    cause: Cause
    wasted: Wasted


@dataclass(frozen=True)
class Finish:
    """No more outcomes will come: seal and complete."""

    lease: Lease


@dataclass(frozen=True)
class Abandon:
    """The lease is over."""

    lease: Lease
    on_trial: bool  # with a single record in the engine


@dataclass(frozen=True)
class FlushAll:
    """Write everything that was handed over before."""

    done: threading.Event = field(default_factory=threading.Event)


Item = Answered | WasteNote | Finish | Abandon | FlushAll


# Reasons that mean that the engine has worked on the record.
ATTEMPTED = frozenset(
    {Reason.TRUNCATED, Reason.INVALID_OUTPUT, Reason.ENGINE_ERROR, Reason.TIMEOUT, Reason.ENGINE_KILLER}
)


def tokens(outcome: Result | Failure) -> Wasted:
    return Wasted(records=1, prompt_tokens=outcome.prompt_tokens, output_tokens=outcome.output_tokens)
