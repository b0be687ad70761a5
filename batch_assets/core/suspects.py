"""Finding the record that kills the engine, by halves.

When the engine dies, every record in flight is a suspect. They run again in groups: a group that
survives is innocent, one that kills the engine again is halved, and a record that kills it alone
is the culprit. One culprit in a window of n costs at most log2(n) + 1 more restarts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Groups still to be tried, the next one first. Empty: nobody is suspected."""

    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def group(self) -> tuple[str, ...]:
        """The records to run now, alone in the engine."""
        return self.groups[0] if self.groups else ()


def accuse(trial: Trial, in_flight: tuple[str, ...]) -> tuple[Trial, str | None]:
    """The engine died with these records in flight: the next trial, and the culprit if it is known."""
    others = tuple(group for group in trial.groups if not set(group) & set(in_flight))
    if len(in_flight) == 1:
        return Trial(groups=others), in_flight[0]
    half = len(in_flight) // 2
    halves = tuple(group for group in (in_flight[:half], in_flight[half:]) if group)
    return Trial(groups=halves + others), None


def acquit(trial: Trial) -> Trial:
    """The group on trial has finished without killing the engine."""
    return Trial(groups=trial.groups[1:])
