"""Which published versions keep their files, decided from the history of the pointer alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from batch_assets.core.history import standing_versions


@dataclass(frozen=True, kw_only=True)
class Move:
    """One move of the pointer; times are seconds since 1970."""

    kind: str
    from_version: str | None
    to_version: str
    at: float


def reasons_to_keep(
    moves: Sequence[Move], *, keep: int, grace_s: float, now: float, bases: Collection[str] = ()
) -> dict[str, str | None]:
    """For each version that was ever published, in order: why its files stay; None when they need not.

    `moves` come the oldest first. The last `keep` are counted twice: in what a rollback can step
    through, and in the order of publication, so that a version that was just rolled back from can be
    gone forward to again. Readers may have a version open for `grace_s` after the pointer left it.
    `bases` are versions that somebody still has to read to merge changes with them.
    """
    published = list(dict.fromkeys(move.to_version for move in moves))
    standing = standing_versions((move.kind, move.to_version) for move in moves)
    recent = set(_last_distinct(standing, keep)) | set(_last_distinct([move.to_version for move in moves], keep))
    left_at = {move.from_version: move.at for move in moves if move.from_version is not None}
    reasons: dict[str, str | None] = {}
    for version in published:
        if version == moves[-1].to_version:
            reasons[version] = "readers see it"
        elif version in recent:
            reasons[version] = f"one of the last {keep} published"
        elif version in bases:
            reasons[version] = "the base of changes that are not published yet"
        elif now - left_at.get(version, now) < grace_s:
            reasons[version] = f"readers could open it until less than {grace_s / 3600:g} h ago"
        else:
            reasons[version] = None
    return reasons


def _last_distinct(versions: Sequence[str], count: int) -> list[str]:
    return list(dict.fromkeys(reversed(versions)))[:count]
