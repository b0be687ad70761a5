"""Pinning: freeze a job folder into a job version (invariant I2)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from batch_assets.core.version import ChangesPin, FilePin, JobVersion, ModelPin, PromptPin, SchemaPin, SnapshotPin
from batch_assets.engine.create import create_encoder
from batch_assets.engine.hardware import processor_dtype
from batch_assets.engine.model_files import digest_model
from batch_assets.errors import SpecError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.job_files import SPEC_FILE
from batch_assets.operations.jobs import Job
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.snapshots import SnapshotReader, pin_snapshot


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The version that a job folder stands for."""

    version: JobVersion
    job_version: str
    is_new: bool
    notes: tuple[str, ...] = ()  # what the author should know, in sentences


def pin(deployment: Deployment, job: Job) -> Pinned:
    """Make the folder's version known, or find that it is known already.

    Raises SpecError, SnapshotError or ModelError, and changes nothing, when something does not fit.
    """
    snapshot = pin_snapshot(job.spec.snapshot, job.folder, deployment.objects)
    return make_known(deployment, job, freeze(deployment, job, snapshot))


def freeze(deployment: Deployment, job: Job, snapshot: SnapshotPin, changes: ChangesPin | None = None) -> JobVersion:
    """The version that the folder stands for with this snapshot; nothing is written."""
    model = _pin_model(job, deployment.settings)
    _check_templates(job, snapshot, deployment)
    encoder = create_encoder(
        model, deployment.settings.models, instruction=job.template.instruction, prompt_format=job.spec.prompt.format
    )
    if encoder.overhead_tokens >= job.spec.decoding.input_tokens_max:
        raise SpecError(
            f"{job.folder / SPEC_FILE}: key 'decoding.input_tokens_max': found {job.spec.decoding.input_tokens_max}, but the "
            f"instruction alone takes {encoder.overhead_tokens} tokens, so no record would fit."
        )
    return JobVersion(
        job=job.name,
        label=job.spec.label,
        snapshot=snapshot,
        model=model,
        prompt=PromptPin(
            text=job.prompt_text,
            sha256=_sha256(job.prompt_text),
            format=job.spec.prompt.format,
            template_sha256=encoder.template_digest(),
        ),
        decoding=job.spec.decoding,
        output_schema=SchemaPin(source=job.schema_source, sha256=_sha256(job.schema_source)),
        shard_size=job.spec.shard_size,
        changes=changes,
        pinned_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def make_known(deployment: Deployment, job: Job, version: JobVersion) -> Pinned:
    """Write and register a version, unless one with the same identity is there."""
    known = deployment.ledger.plans.find_digest(version.digest)
    if known is None:
        stands = deployment.version_files.write(version)
        return Pinned(version=stands, job_version=stands.id, is_new=True)
    stands = deployment.version(deployment.ledger.plans.get(known))
    moved = {
        now.sha256: now.key
        for now, then in zip(version.snapshot.files, stands.snapshot.files, strict=True)
        if now.sha256 == then.sha256 and now.key != then.key
    }
    deployment.ledger.plans.move_files(known, moved)
    registered = deployment.ledger.plans.get(known)
    return Pinned(version=stands, job_version=known, is_new=False, notes=_notes(job, stands, registered))


def changed_since(job: Job, version: JobVersion) -> tuple[str, ...]:
    """Which pinned parts of the folder differ from a version, as far as can be told without the data."""
    parts = {
        job.spec.prompt.file: job.prompt_text != version.prompt.text or job.spec.prompt.format != version.prompt.format,
        job.spec.output_schema: job.schema_source != version.output_schema.source,
        "decoding": job.spec.decoding != version.decoding,
    }
    return tuple(name for name, has_changed in parts.items() if has_changed)


def _notes(job: Job, stands: JobVersion, registered: RegisteredVersion) -> tuple[str, ...]:
    notes = []
    if registered.cancelled:
        notes.append(
            f"it was cancelled and will not be run; after `batch-assets retire {stands.id} --forget` it can be pinned anew"
        )
    if job.spec.shard_size != stands.shard_size:
        notes.append(
            f"shards stay at {stands.shard_size} records; shard_size {job.spec.shard_size} holds for new versions"
        )
    if job.spec.label != stands.label:
        notes.append(
            f"nothing but the label changed, so {stands.id} stands; label {job.spec.label} holds for new versions"
        )
    return tuple(notes)


def _pin_model(job: Job, settings: Settings) -> ModelPin:
    spec = job.spec.model
    if job.spec.engine.kind == "scripted" or spec is None:
        # Answers made by a script must never share a version with a model's.
        return ModelPin(
            provider="scripted", name="scripted", digest="scripted", files=(), dtype="none", quantization=None
        )
    manifest = digest_model(settings.models / Path(spec.path).expanduser())
    return ModelPin(
        provider="local",
        name=spec.path,
        digest=manifest.digest,
        files=tuple(FilePin(key=file.name, size=file.size, sha256=file.sha256) for file in manifest.files),
        dtype=processor_dtype() if spec.dtype == "auto" else spec.dtype,
        quantization=spec.quantization,
    )


def _check_templates(job: Job, snapshot: SnapshotPin, deployment: Deployment) -> None:
    schema = SnapshotReader(snapshot, deployment.objects).schema()
    _check_template(job.folder / job.spec.prompt.file, job.template.columns, schema)
    if (judge := job.suite.judge) is not None:  # now, not after the hours that the answers take
        _check_template(job.folder / judge.gate.prompt, judge.record_columns, schema)


def _check_template(where: Path, columns: Sequence[str], schema: pa.Schema) -> None:
    for column in columns:
        if column not in schema.names:
            raise SpecError(
                f"{where}: the record template names column {column!r}, which the snapshot does not have. "
                f"Its columns are {', '.join(schema.names)}."
            )
        if pa.types.is_nested(schema.field(column).type) or pa.types.is_binary(schema.field(column).type):
            raise SpecError(
                f"{where}: column {column!r} is {schema.field(column).type}, which cannot be put into a prompt; "
                "use columns of text, numbers, booleans or dates."
            )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
