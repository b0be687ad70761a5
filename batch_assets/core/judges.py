"""Judges: the prompt that scores a job's results is a version of its own, beside the job's versions.

Its job is named `<job>__judge`. No job can have that name, because `__` is not allowed in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_SUFFIX = "__judge"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the judge said of the sampled results."""

    job_version: str | None = None  # the judge's own version; None when it was not asked
    problem: str | None = None  # why there is no score
    scores: Mapping[str, float] = field(default_factory=dict)  # by record id
    dead_letters: Mapping[str, str] = field(default_factory=dict)  # record id -> reason: no score was got


def judge_of(job: str) -> str:
    """The name under which a job's judge is pinned."""
    return f"{job}{_SUFFIX}"


def is_judge(job: str) -> bool:
    return job.endswith(_SUFFIX)


def folder_job(job: str) -> str:
    """The job whose folder a version needs: a judge has none of its own."""
    return job.removesuffix(_SUFFIX)
