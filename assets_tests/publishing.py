"""Versions with verdicts that were given, not found: for tests of what happens after the checks."""

from __future__ import annotations

from collections.abc import Sequence

from assets_tests.factories import PROMPT, make_job
from assets_tests.homes import Home
from batch_assets.core.verdicts import Verdict
from batch_assets.operations.publish import basis_digests, publish
from batch_assets.operations.whole import content_digest
from batch_assets.storage.plans import RegisteredVersion


def worked(home: Home, word: str, **spec: object) -> RegisteredVersion:
    """A complete version whose prompt starts with a word of its own."""
    make_job(home.jobs, prompt=PROMPT.replace("Sort", word), **spec)  # type: ignore[arg-type]
    return home.worked()[0]


def judged(
    home: Home, registered: RegisteredVersion, *, failed: Sequence[str] = (), missing: Sequence[str] = ()
) -> RegisteredVersion:
    """Give the version, as it is now, a verdict of each required check; `failed` ones block."""
    here, job = home.deployment, home.deployment.job(registered.job)
    names = [*dict.fromkeys((*job.required_checks, *failed))]
    verdicts = [
        Verdict(check=name, passed=name not in failed, blocking=True, summary=f"{name} was looked at")
        for name in names
        if name not in missing
    ]
    basis = basis_digests(job, here.ledger.publications.current(job.name))
    here.ledger.publications.record_verdicts(
        registered.job_version,
        content_digest(here, registered.job_version),
        {**dict.fromkeys(names, ""), **basis},
        verdicts,
    )
    return registered


def published(home: Home, word: str, **spec: object) -> RegisteredVersion:
    """A version that was worked, judged well and published."""
    registered = judged(home, worked(home, word, **spec))
    publish(home.deployment, registered)
    return registered
