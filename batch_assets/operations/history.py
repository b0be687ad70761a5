"""The history of a job's pointer as plain values, for the command line, the UI and scripts. Keys are stable."""

from __future__ import annotations

from typing import Any

from batch_assets.operations.deployment import Deployment
from batch_assets.storage.publications import Publication


def history(deployment: Deployment, job: str) -> list[dict[str, Any]]:
    """All moves of the pointer, the newest first."""
    swept = deployment.ledger.retention.swept()
    return [
        {
            "sequence": move.sequence,
            "at": move.at,
            "who": move.who,
            "kind": move.kind,
            "from": move.from_version,
            "to": move.to_version,
            "verdicts": dict(move.verdicts),
            "override": override_of(move),
            "publication_id": move.publication_id,
            "swept": move.to_version in swept,
        }
        for move in deployment.ledger.publications.history(job)
    ]


def standing_override(deployment: Deployment, job: str) -> dict[str, Any] | None:
    """The override by which what readers see now was published; it stands after a rollback to that version, too."""
    moves = deployment.ledger.publications.history(job)
    shown = moves[0].to_version if moves else None
    published = next((move for move in moves if move.kind == "publish" and move.to_version == shown), None)
    return None if published is None else override_of(published)


def override_of(move: Publication) -> dict[str, Any] | None:
    """Why a version was published although checks that block had failed, by whom and when; None when none had."""
    if move.override is None:
        return None
    return {"reason": move.override, "checks": list(move.overrode), "who": move.who, "at": move.at}
