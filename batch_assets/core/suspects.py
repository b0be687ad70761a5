"""Finding the record that kills the engine or the whole worker, by halves.

When the engine dies, every record in flight is a suspect. They run again in groups: a group that
survives is innocent, one that kills the engine again is halved, and a record that kills it alone
is the culprit. One culprit in a window of n costs at most ⌈log2(n)⌉ + 1 restarts until it stands
alone for the first time, and two more for its second and third attempt.

A worker that dies takes the knowledge of what was in flight with it. After two such deaths in a row,
all of the shard's unfinished records are suspects, in groups of one window; which group is in the
engine is written down before it goes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Groups still to be tried, the next one first. Empty: nobody is suspected."""

    groups: Groups = ()

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


def suspect_all(ids: Sequence[str], *, group_max: int) -> Groups:
    """Everybody is suspected: groups that fit into the engine's window."""
    return tuple(tuple(ids[first : first + group_max]) for first in range(0, len(ids), group_max))


def without(groups: Groups, settled: Iterable[str]) -> Groups:
    """The groups without those who have an outcome meanwhile."""
    gone = set(settled)
    left = (tuple(one for one in group if one not in gone) for group in groups)
    return tuple(group for group in left if group)
