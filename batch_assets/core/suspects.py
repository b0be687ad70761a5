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

from collections.abc import Collection
from dataclasses import dataclass

from batch_assets.core.outcomes import ATTEMPTS_MAX

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


@dataclass(frozen=True, kw_only=True)
class ShardTrial:
    """The part of a trial that belongs to one shard, as it is kept for the next worker."""

    groups: Groups = ()
    everyone: bool = False  # the records that are in no group run in groups as well: they are suspects, too
    running: bool = False  # the first group is in the engine
    died: bool = False  # its worker's process is known to have ended meanwhile, without notice
    losses: int = 0  # workers lost in a row with the first group, a single record, and not heard of since

    def __bool__(self) -> bool:
        return bool(self.groups) or self.everyone


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """How to go on with a shard's trial, and who has to pay for how many attempts."""

    trial: ShardTrial
    culprit: str | None = None
    attempts: int = 0


def take_up(left: ShardTrial, settled: Collection[str]) -> TakenUp:
    """Go on where a worker has left off. `settled` are the records that have an outcome.

    A group that was in the engine when its worker ended without notice is halved, unless some of it were
    answered meanwhile: then the worker may as well have been evicted, and the others are tried once more.
    A single record pays an attempt when its worker's process is known to have died. When the lease has
    only run out, nobody knows: the worker may be frozen or cut off. Such a record pays when as many
    workers in a row as a record has attempts were lost with it and none was heard of again.
    """
    groups = tuple(tuple(one for one in group if one not in settled) for group in left.groups)
    others = tuple(group for group in groups[1:] if group)
    first = groups[0] if groups else ()
    if not first:
        return TakenUp(trial=ShardTrial(groups=others, everyone=left.everyone))
    if not left.running or len(first) < len(left.groups[0]):
        losses = left.losses if first == left.groups[0] else 0
        return TakenUp(trial=ShardTrial(groups=(first, *others), everyone=left.everyone, losses=losses))
    if len(first) == 1 and not left.died and left.losses + 1 < ATTEMPTS_MAX:
        again = ShardTrial(groups=(first, *others), everyone=left.everyone, losses=left.losses + 1)
        return TakenUp(trial=again)
    trial, culprit = accuse(Trial(groups=others), first)
    attempts = 0 if culprit is None else 1 if left.died else ATTEMPTS_MAX
    return TakenUp(trial=ShardTrial(groups=trial.groups, everyone=left.everyone), culprit=culprit, attempts=attempts)
