"""What a rollback goes back to, decided from the history of the pointer alone."""

from __future__ import annotations

from collections.abc import Iterable


def standing_versions(moves: Iterable[tuple[str, str]]) -> list[str]:
    """The versions that a rollback can step through, the published one last.

    `moves` are (kind, to_version), the oldest first. Publishing puts a version on top; rolling back
    takes away what was above its target, so a second rollback goes further back, not forth again.
    """
    stack: list[str] = []
    for kind, version in moves:
        if kind == "rollback" and version in stack:
            del stack[stack.index(version) + 1 :]
        elif not stack or stack[-1] != version:
            stack.append(version)
    return stack
