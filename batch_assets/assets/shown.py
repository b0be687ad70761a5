"""Which versions of a job are in the asset graph: the newest few, and those that must not vanish.

The choice is made when the code location loads. Every process that runs a step loads it again, and
by then newer versions may exist; the first choice therefore travels with the run as reconstruction
metadata, and the step finds the version that it was started for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

from batch_assets.storage.ledger import Ledger
from batch_assets.storage.plans import RegisteredVersion

NEWEST_SHOWN = 5
METADATA_KEY = "batch_assets/shown_versions"


def is_reconstruction() -> bool:
    """Whether this process runs part of a run whose definitions were loaded before."""
    return DefinitionsLoadContext.get().load_type is DefinitionsLoadType.RECONSTRUCTION


def shown_versions(ledger: Ledger, job: str) -> list[RegisteredVersion]:
    """The newest versions, the published one and those being worked on; the newest first."""
    known = ledger.plans.list(job)
    chosen = _chosen_before(job)
    if chosen is not None:
        return [one for one in known if one.job_version in chosen]
    published = ledger.publications.current(job)
    older = [one for one in known[NEWEST_SHOWN:] if one.job_version == published or _is_running(ledger, one)]
    return known[:NEWEST_SHOWN] + older


def encode_choice(versions: Mapping[str, Sequence[str]]) -> str:
    """The choice of each job, as it travels with a run."""
    return json.dumps({job: list(ids) for job, ids in versions.items()})


def _chosen_before(job: str) -> frozenset[str] | None:
    if not is_reconstruction():
        return None
    choice = DefinitionsLoadContext.get().reconstruction_metadata.get(METADATA_KEY)
    ids = json.loads(choice).get(job) if isinstance(choice, str) else None
    return frozenset(ids) if ids is not None else None


def _is_running(ledger: Ledger, registered: RegisteredVersion) -> bool:
    return any(True for _ in ledger.progress.shards(registered.job_version, state="leased"))
