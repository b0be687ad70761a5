"""The report of a version: what a person reviews before readers see it, on one page.

Verdicts are read from the ledger, as publishing would read them; what is missing or was judged on
another content, gate or baseline is said, and nothing is computed anew. The page's size depends on
neither the number of records nor the number of shards.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa

from batch_assets.core.verdicts import Verdict, refusals
from batch_assets.core.version import JobVersion
from batch_assets.errors import BatchAssetsError, InputError
from batch_assets.operations.check import CHECKS
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.history import history
from batch_assets.operations.jobs import Job
from batch_assets.operations.publish import basis_digests
from batch_assets.operations.report_page import picture, render_page
from batch_assets.operations.report_sample import SampledResult, sample_results
from batch_assets.operations.status import status
from batch_assets.operations.whole import content_digest
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.publications import KeptVerdict
from batch_assets.validation.pictures import pictures_of

SAMPLE = 12
HISTORY_MAX = 30
FILES_MAX = 50
EXAMPLES = 5
_SHORT = 12  # numbers that are shown without a click


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """One check as the page shows it."""

    name: str
    state: Literal["current", "stale", "missing"]
    blocking: bool
    verdict: Verdict | None = None
    at: str | None = None
    note: str = ""  # why it does not count
    purpose: list[str] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)

    @property
    def is_short(self) -> bool:
        return self.verdict is not None and len(self.verdict.numbers) <= _SHORT


def report_path(deployment: Deployment, registered: RegisteredVersion) -> Path:
    """Where a version's report is kept."""
    return deployment.settings.root / "reports" / registered.job / f"{registered.job_version}.html"


def write_report(deployment: Deployment, registered: RegisteredVersion, output: Path | None = None) -> Path:
    """Write the page beside its place and rename it there; returns where it is.

    Raises InputError when the file cannot be written.
    """
    target = (output or report_path(deployment, registered)).expanduser().absolute()
    page = report(deployment, registered).encode("utf-8", "backslashreplace")
    try:
        if output is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise InputError(f"Cannot write {target}: it is a folder. Name a file with --output.")
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".report-", delete=False) as draft:
            draft.write(page)
        Path(draft.name).chmod(0o666 & ~_umask())
        Path(draft.name).replace(target)
    except OSError as error:
        raise InputError(
            f"Cannot write {target} ({error.strerror}). Choose another place with --output; nothing else was changed."
        ) from None
    return target


def report(deployment: Deployment, registered: RegisteredVersion) -> str:
    """The page as text."""
    version, state = deployment.version(registered), status(deployment, registered)
    job, gate_problem = _job(deployment, registered)
    checks = _checks(deployment, registered, job)
    sample, sample_problem = _sample(deployment, version)
    moves = history(deployment, registered.job)
    return render_page(
        {
            "version": version,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "standing": _standing(registered, state),
            "decision": _decision(registered, state, job, checks),
            "figures": _figures(state),
            "checks": checks,
            "gate_problem": gate_problem,
            "suite": _suite(job) if job is not None else {},
            "dead_letters": list(_dead_letters(deployment, registered, state)),
            "sample": sample,
            "sample_problem": sample_problem,
            "work": _work(deployment, registered, state),
            "waste": [[cause, *total.values()] for cause, total in state["waste"].items()],
            "shards": state["shards"],
            "recipe": _recipe(version),
            "snapshot": _snapshot(version),
            "files": [[one.key, one.rows, one.size, one.sha256] for one in version.snapshot.sources[:FILES_MAX]],
            "decoding": version.decoding.model_dump(mode="json"),
            "changes": _changes(version),
            "history": [_move(move) for move in moves[:HISTORY_MAX]],
            "moves": len(moves),
        }
    )


def _job(deployment: Deployment, registered: RegisteredVersion) -> tuple[Job | None, str]:
    """The job's folder as it is now; a version can outlive it."""
    try:
        return deployment.job(registered.job), ""
    except BatchAssetsError as error:
        return None, str(error)


# --- the checks ------------------------------------------------------------------------------------


def _checks(deployment: Deployment, registered: RegisteredVersion, job: Job | None) -> list[CheckFacts]:
    """Each check of the gate with its verdict; without the gate, the verdicts that there are."""
    kept = {one.verdict.check: one for one in deployment.ledger.publications.kept_verdicts(registered.job_version)}
    content = content_digest(deployment, registered.job_version)
    if job is None:
        return [_check(name, one, None, content, []) for name, one in sorted(kept.items())]
    bases = [basis_digests(job, baseline) for baseline in _baselines(deployment, registered)]
    return [_check(name, kept.get(name), job, content, bases) for name in job.required_checks]


def _baselines(deployment: Deployment, registered: RegisteredVersion) -> list[str | None]:
    """What the version may have been compared with: what readers see, and if that is the version itself, what they saw."""
    standing = deployment.ledger.publications.pointer(registered.job)
    if standing is None:
        return [None]
    before = [standing.from_version] if standing.to_version == registered.job_version else []
    return [standing.to_version, *before]


def _check(
    name: str, kept: KeptVerdict | None, job: Job | None, content: str, bases: Sequence[Mapping[str, str]]
) -> CheckFacts:
    purpose = _purpose(name)
    if kept is None:
        note = "It was not made on this version yet, so the version cannot be published."
        return CheckFacts(name=name, state="missing", blocking=_blocks(name, job), note=note, purpose=purpose)
    note = _why_stale(kept, content, [basis[name] for basis in bases if name in basis])
    return CheckFacts(
        name=name,
        state="stale" if note else "current",
        blocking=kept.verdict.blocking,
        verdict=kept.verdict,
        at=kept.at,
        note=note,
        purpose=purpose,
        pictures={title: picture(svg) for title, svg in pictures_of(kept.verdict).items()},
    )


def _why_stale(kept: KeptVerdict, content: str, bases: Sequence[str]) -> str:
    again = "It does not count; check the version again."
    if kept.content != content:
        return f"The version had other results or dead letters when this was judged. {again}"
    if kept.basis not in bases:
        return f"It was judged by another gate, golden set or published version than there is now. {again}"
    return ""


def _blocks(name: str, job: Job | None) -> bool:
    section = getattr(job.spec.gate, name, None) if job is not None else None
    return bool(getattr(section, "blocking", True))


def _purpose(name: str) -> list[str]:
    """The check's own documentation, by paragraph."""
    check = CHECKS.get(name)
    texts = [inspect.getdoc(check) or ""] if check is not None else []
    module = inspect.getmodule(check) if check is not None else None
    texts.insert(0, inspect.getdoc(module) or "" if module is not None else "")
    return [" ".join(one.split()) for text in texts for one in text.split("\n\n") if one.strip()]


def _decision(
    registered: RegisteredVersion, state: Mapping[str, Any], job: Job | None, checks: list[CheckFacts]
) -> dict[str, Any]:
    """What publishing would say now."""
    counting = [one.verdict for one in checks if one.state == "current" and one.verdict is not None]
    if registered.retired:
        return {"allowed": False, "sentence": "Retired: this version is not published any more.", "reasons": ()}
    if state["published"] == registered.job_version:
        return {"allowed": True, "sentence": "Published: readers see this version.", "reasons": ()}
    if job is None:
        return {"allowed": False, "sentence": "The gate is not known, so nothing can be published.", "reasons": ()}
    reasons = refusals(counting, job.required_checks)
    sentence = "The gate refuses this version." if reasons else "The gate allows this version to be published."
    return {"allowed": not reasons, "sentence": sentence, "reasons": reasons}


# --- the gate's standard ---------------------------------------------------------------------------


def _suite(job: Job) -> dict[str, Any]:
    gate, judge = job.spec.gate, job.suite.judge
    return {
        "golden": _golden(job),
        "graders": [[one.name, Path(one.where).name, one.min, one.sha256] for one in job.suite.graders],
        "judge": judge.gate.model_dump(mode="json", exclude_none=True) if judge is not None else None,
        "judge_prompt": judge.prompt_text if judge is not None else "",
        "gate": gate.model_dump(mode="json", exclude_none=True),
    }


def _golden(job: Job) -> dict[str, Any]:
    labels = job.golden()
    if not labels:
        return {}
    evaluation = job.spec.gate.evaluation
    return {
        "file": evaluation.golden_file if evaluation is not None else None,
        "field": job.evaluated_field,
        "records": len(labels),
        "labels": dict(Counter(str(label) for label in labels.values()).most_common()),
    }


# --- the version -----------------------------------------------------------------------------------


def _standing(registered: RegisteredVersion, state: Mapping[str, Any]) -> str:
    pinned = datetime.fromtimestamp(registered.pinned_at, UTC).isoformat(timespec="seconds")
    if state["published"] is None:
        shown = "nothing of this job is published"
    elif state["published"] == registered.job_version:
        shown = "published"
    else:
        shown = f"readers see {state['published']}"
    parts = [f"Pinned at {pinned}", shown]
    parts += [word for word, holds in (("cancelled", registered.cancelled), ("retired", registered.retired)) if holds]
    return "; ".join(parts)


def _figures(state: Mapping[str, Any]) -> dict[str, Any]:
    records = state["records"] or 1
    return {
        "records": state["records"],
        "results": state["results"],
        "dead letters": state["dead_letters"],
        "of all given up": f"{state['dead_letters'] / records:.2%}",
        "still open": state["pending"],
        "duplicates discarded": state["duplicates_discarded"],
    }


def _work(deployment: Deployment, registered: RegisteredVersion, state: Mapping[str, Any]) -> dict[str, Any]:
    """What it took. The ledger knows tokens and time; what an hour of a machine costs, it does not."""
    totals = deployment.ledger.progress.totals(registered.job_version)
    wasted = state["waste"].values()
    return {
        "prompt tokens": totals.prompt_tokens,
        "of them from the prefix cache": totals.cached_tokens,
        "output tokens": totals.output_tokens,
        "tokens of requests in vain": sum(one["prompt_tokens"] + one["output_tokens"] for one in wasted),
        "hours in which workers stored something": round(totals.busy_s / 3600, 3),
        "records per second, over the last two minutes of work": state["records_per_s"],
        "output tokens per second, likewise": state["tokens_per_s"],
    }


def _recipe(version: JobVersion) -> dict[str, Any]:
    model = version.model
    return {
        "version": version.id,
        "digest": version.digest,
        "recipe digest": version.recipe_digest,
        "model": model.name,
        "model digest": model.digest,
        "weights": f"{model.dtype}, quantization {model.quantization or 'none'}, {len(model.files)} files",
        "prompt digest": version.prompt.sha256,
        "presented as": version.prompt.format,
        "chat template digest": version.prompt.template_sha256,
        "output schema digest": version.output_schema.sha256,
        "records per shard": version.shard_size,
    }


def _snapshot(version: JobVersion) -> dict[str, Any]:
    snapshot = version.snapshot
    return {
        "records": snapshot.rows,
        "record id": snapshot.record_id,
        "text": list(snapshot.text),
        "record class": snapshot.record_class,
        "access labels": list(snapshot.access_labels),
    }


def _changes(version: JobVersion) -> dict[str, Any]:
    changes = version.changes
    if changes is None:
        return {}
    return {
        "changes to": changes.base,
        "records changed or new": version.records,
        "records removed": changes.removed.rows if changes.removed is not None else 0,
        "nightly batch": changes.batch,
    }


def _dead_letters(
    deployment: Deployment, registered: RegisteredVersion, state: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for reason, count in state["dead_letters_by_reason"].items():
        letters = deployment.ledger.outcomes.dead_letter_examples(registered.job_version, reason, count=EXAMPLES)
        examples = [{"record_id": one.record_id, "attempt": one.attempts, "error": one.error} for one in letters]
        yield {"name": reason, "count": count, "examples": examples}


def _sample(deployment: Deployment, version: JobVersion) -> tuple[list[SampledResult], str]:
    """Results to read, or why there are none: a report of a version whose files are gone is still of use."""
    try:
        return list(sample_results(deployment, version, SAMPLE)), ""
    except (BatchAssetsError, duckdb.Error, pa.ArrowException, OSError) as error:
        return [], f"The results or their records cannot be read: {error}"


def _move(move: Mapping[str, Any]) -> list[Any]:
    override = move["override"]
    told = f"{override['reason']} (set aside: {', '.join(override['checks'])})" if override else None
    return [str(move["sequence"]), move["at"], move["who"], move["kind"], move["from"], move["to"], told]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
