"""The judge: a second pinned prompt that scores the sampled results of a version.

The pairs of record and result become a small snapshot, and the judge a version of its own: planned,
leased, answered exactly once and sealed like any other. Its identity covers prompt, schema, model and
the pairs, so the same content is judged once, however often it is checked.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.judges import Judged
from batch_assets.core.version import FilePin, SnapshotPin
from batch_assets.errors import SpecError, StoreError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job, judge_job
from batch_assets.operations.pin import freeze, make_known
from batch_assets.operations.plan import plan
from batch_assets.operations.suite import RESULT, Judge
from batch_assets.operations.work import work
from batch_assets.validation.evaluation.sample import Sample, draw_sample
from batch_assets.validation.evidence import Evidence


def ask_judge(deployment: Deployment, job: Job, judge: Judge, evidence: Evidence) -> Judged:
    """The judge's scores of the sample; runs an engine here for what was not judged before.

    Raises what a worker raises: ModelError, EngineUnavailable, SpecError. What is judged by then stays.
    """
    open_shards = sum(shard.state != "completed" for shard in deployment.ledger.progress.shards(evidence.version.id))
    if open_shards:
        return Judged(problem=f"it was not asked, because {open_shards:,} shards of the version are not sealed")
    sample = draw_sample(evidence, judge.gate.sample)
    if not sample.rows:
        return Judged(problem="there is no result to judge")
    snapshot = _store_pairs(deployment, job, judge, evidence, sample)
    own_job = judge_job(job)
    pinned = make_known(deployment, own_job, freeze(deployment, own_job, snapshot))
    plan(deployment, deployment.ledger.plans.get(pinned.job_version))
    work(deployment, deployment.ledger.plans.get(pinned.job_version))
    unfinished = sum(shard.state != "completed" for shard in deployment.ledger.progress.shards(pinned.job_version))
    if unfinished:
        return Judged(
            job_version=pinned.job_version,
            problem=f"{unfinished:,} shards of {pinned.job_version} are not completed; `batch-assets shards "
            f"{pinned.job_version}` says why, and the check goes on from there",
        )
    return Judged(
        job_version=pinned.job_version,
        scores=dict(_scores(deployment, pinned.job_version, snapshot.record_id, judge.gate.score)),
        dead_letters={one.record_id: one.reason for one in deployment.ledger.outcomes.dead_letters(pinned.job_version)},
    )


def _store_pairs(deployment: Deployment, job: Job, judge: Judge, evidence: Evidence, sample: Sample) -> SnapshotPin:
    """The judge's records as a Parquet object: what its template names, and the records' access labels."""
    pin, types = evidence.version.snapshot, deployment.reader(evidence.version).schema()
    copied = list(dict.fromkeys((pin.record_id, *pin.access_labels, *judge.record_columns)))
    made = list(dict.fromkeys((RESULT, *(name for name in judge.template.columns if name not in judge.record_columns))))
    clash = sorted(name for name in copied if name.lower() in {one.lower() for one in made})
    if clash:
        raise SpecError(
            f"{job.folder / judge.gate.prompt}: the snapshot's column {clash[0]!r} has the name under which the judge sees "
            "the result; rename the column."
        )
    columns = {
        **{name: pa.array([row.record[name] for row in sample.rows], types.field(name).type) for name in copied},
        **{name: pa.array([_shown(row.result, name) for row in sample.rows], pa.string()) for name in made},
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    key = f"snapshots/{digest[:16]}-judged.parquet"
    kept = deployment.objects.put_if_absent(key, data)
    stored = deployment.objects.stat(key)
    if not kept or stored is None:
        raise StoreError(
            f"{key} in {deployment.objects.address} is gone again or damaged. Remove what stands there and check again; it "
            "is made anew, and no result is lost."
        )
    file = FilePin(key=key, size=stored.size, sha256=digest, rows=len(sample.rows), modified_ns=stored.modified_ns)
    return SnapshotPin(
        sources=(file,),
        files=(file,),
        rows=len(sample.rows),
        record_id=pin.record_id,
        text=(RESULT,),
        record_class=None,
        access_labels=pin.access_labels,
    )


def _shown(result: Any, column: str) -> str | None:
    """The result, or one field of it, as the judge reads it."""
    value = result if column == RESULT else result[column.removeprefix(f"{RESULT}.")]
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _scores(deployment: Deployment, job_version: str, record_id: str, field: str) -> Iterator[tuple[str, float]]:
    for shard in deployment.ledger.progress.shards(job_version, state="completed"):
        with deployment.objects.open(str(shard.sealed_key)) as file:
            table = pq.read_table(file, columns=[record_id, field])
        for row in table.to_pylist():
            if row[field] is not None:
                yield str(row[record_id]), float(row[field])
