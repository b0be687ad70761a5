"""The job version: a job frozen into what decides its answers (invariant I2).

The id is a digest over snapshot content, column roles, model weights, prompt, decoding parameters
and output schema: nothing else, and all of it. Where a file lies, how many workers run, or when it
was pinned does not enter. The version file also carries what is needed to run the version later,
after the job folder has changed: the prompt's text, the schema's source, the file locations and
the shard size.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from batch_assets.core.spec import DecodingSpec, Strict
from batch_assets.errors import VersionError

ID_DIGITS = 12
FORMAT = 1


class FilePin(Strict):
    """One file, by content. `key` says where it is; it does not enter the version's digest."""

    key: str
    size: int = Field(ge=0, description="bytes")
    sha256: str
    rows: int = Field(0, ge=0)
    modified_ns: int | None = Field(None, description="when the file was last written; a hint to look closer")


class SnapshotPin(Strict):
    """The input records: files in order, and what their columns mean."""

    sources: tuple[FilePin, ...]  # as the author gave them; these decide the identity
    files: tuple[FilePin, ...]  # Parquet, as the workers read them; same as sources for Parquet input
    rows: int = Field(ge=0, description="0 only where an incremental version does nothing but remove")
    record_id: str
    text: tuple[str, ...]
    record_class: str | None
    access_labels: tuple[str, ...]


class ModelPin(Strict):
    """The weights, by digest over every file of the model directory."""

    provider: Literal["local", "scripted"]  # scripted answers never share a version with a model's
    name: str  # the directory as the spec names it: absolute, or relative to BATCH_ASSETS_MODELS
    digest: str
    files: tuple[FilePin, ...]
    dtype: str
    quantization: str | None


class PromptPin(Strict):
    """The prompt's bytes, its presentation, and the model's template as rendered with a probe."""

    text: str
    sha256: str
    format: Literal["chat", "plain"]
    template_sha256: str


class SchemaPin(Strict):
    """The output schema's source."""

    source: str
    sha256: str


class ChangesPin(Strict):
    """What makes a version incremental: its records replace or join those of `base`."""

    base: str = Field(description="the version that was published when this one was pinned")
    removed: FilePin | None = Field(None, description="ids that readers are not to see any more; Parquet, one column")
    removed_digest: str | None = Field(None, description="sha256 over the ids themselves, however they are stored")
    batch: str | None = Field(None, description="name of the nightly batch; it does not enter the version's digest")


class JobVersion(Strict):
    """What `versions/<job>/<id>.json` holds."""

    format: int = FORMAT
    job: str
    label: str
    snapshot: SnapshotPin
    model: ModelPin
    prompt: PromptPin
    decoding: DecodingSpec
    output_schema: SchemaPin
    shard_size: int = Field(ge=1)
    changes: ChangesPin | None = None
    pinned_at: str = Field(description="ISO 8601, UTC")

    @property
    def digest(self) -> str:
        """sha256 over everything that decides an answer, as 64 hex digits."""
        return hashlib.sha256(canonical_json(self.identity())).hexdigest()

    @property
    def id(self) -> str:
        return f"{self.label}_{self.digest[:ID_DIGITS]}"

    @property
    def records(self) -> int:
        return self.snapshot.rows

    @property
    def shards(self) -> int:
        return -(-self.records // self.shard_size)

    def identity(self) -> dict[str, Any]:
        """The pinned things. Adding a key here changes every version's id: bump `FORMAT` with it.

        (`changes` is there for incremental versions only, so that it changed no id that existed.)
        """
        changes = {} if self.changes is None else {"changes": _identity_of_changes(self.changes)}
        return {
            **changes,
            "job": self.job,
            "snapshot": {
                "sources": [[pin.sha256, pin.size, pin.rows] for pin in self.snapshot.sources],
                "rows": self.snapshot.rows,
                "record_id": self.snapshot.record_id,
                "text": self.snapshot.text,
                "record_class": self.snapshot.record_class,
                "access_labels": self.snapshot.access_labels,
            },
            "model": [self.model.provider, self.model.digest, self.model.dtype, self.model.quantization],
            "prompt": [self.prompt.sha256, self.prompt.format, self.prompt.template_sha256],
            "decoding": self.decoding.model_dump(mode="json"),
            "output_schema": self.output_schema.sha256,
        }

    def recipe(self) -> dict[str, Any]:
        """Everything that decides how a record is answered, under the name that an author knows it by.

        Incremental versions share it with what they add to: rows of one recipe can stand in one table.
        """
        identity = self.identity()
        snapshot = {key: value for key, value in identity["snapshot"].items() if key not in ("sources", "rows")}
        return {
            "snapshot columns": snapshot,
            "model": identity["model"],
            "prompt": identity["prompt"],
            "decoding": identity["decoding"],
            "output schema": identity["output_schema"],
        }

    @property
    def recipe_digest(self) -> str:
        """sha256 over the recipe, as 64 hex digits."""
        return hashlib.sha256(canonical_json(self.recipe())).hexdigest()


def _identity_of_changes(changes: ChangesPin) -> dict[str, Any]:
    return {"base": changes.base, "removed": changes.removed_digest}


def canonical_json(value: Any) -> bytes:
    """One spelling per value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def dump_version(version: JobVersion) -> bytes:
    """The version file: readable JSON, sealed by a digest over all of its content."""
    body = version.model_dump(mode="json")
    seal = hashlib.sha256(canonical_json(body)).hexdigest()
    return json.dumps({"id": version.id, "sha256": seal, **body}, indent=1, ensure_ascii=False).encode()


def load_version(data: bytes, *, expected_id: str, where: str) -> JobVersion:
    """Parse a version file and prove that it is what was pinned.

    Raises VersionError when the file was edited, even in parts that the id does not cover.
    """
    edited = (
        f"{where} is not the version file that was pinned as {expected_id}. Version files are never "
        "edited: change the job folder and pin again to get a new version, and restore this file."
    )
    try:
        body = json.loads(data)
        claimed_id, seal = body.pop("id"), body.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise VersionError(edited) from error
    if hashlib.sha256(canonical_json(body)).hexdigest() != seal:
        raise VersionError(edited)
    version = JobVersion.model_validate(body)
    if not claimed_id == version.id == expected_id:
        raise VersionError(edited)
    return version
