"""What a version's page in the UI says: recipe, counts, prompt and columns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster_pandera import pandera_schema_to_dagster_type
from pydantic import BaseModel

from batch_assets.assets.texts import clip, fenced
from batch_assets.core.version import JobVersion
from batch_assets.errors import BatchAssetsError, VersionError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.work import output_model
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.sealed import RECORD_CLASS, RESERVED, sealed_schema
from batch_assets.validation.evidence import without_dictionaries
from batch_assets.validation.table_schema import table_schema

_NOT_FOR_PEOPLE = "output_schema"  # pandera's name of the check that every field has


@dataclass(frozen=True, kw_only=True)
class VersionPage:
    """The texts of one version."""

    description: str  # Markdown; everything in it comes from the spec or is a number
    kind: str = "python"  # the icon on the graph
    metadata: Mapping[str, Any] = field(default_factory=dict)


def version_page(deployment: Deployment, registered: RegisteredVersion) -> VersionPage:
    """A version whose file is not what was pinned gets a page too: it must not hide the others."""
    counts = {"records": registered.records, "shards": registered.shards}
    try:
        version = deployment.version(registered)
    except VersionError as error:
        return VersionPage(description=f"**This version cannot be run.** {error}", metadata=counts)
    return VersionPage(
        description=_description(version),
        kind="vllm" if version.model.provider == "local" else "python",
        metadata={
            **counts,
            "model": dg.MetadataValue.text(version.model.name),
            "model_digest": dg.MetadataValue.text(version.model.digest),
            "prompt_digest": dg.MetadataValue.text(version.prompt.sha256),
            "prompt": fenced(version.prompt.text),
            "output_schema": fenced(version.output_schema.source),
            **_batch(version),
            **_columns(deployment, version),
        },
    )


def _description(version: JobVersion) -> str:
    model, decoding = version.model, version.decoding
    return (
        f"`{version.id}`: {version.records:,} records in {version.shards:,} shards of {version.shard_size:,}; "
        f"one partition per shard.\n\n{_changes(version)}"
        f"- model: `{model.name}` ({model.dtype}), digest `{model.digest[:12]}`\n"
        f"- prompt: `{version.prompt.sha256[:12]}`, {version.prompt.format}\n"
        f"- output schema: `{version.output_schema.sha256[:12]}`\n"
        f"- decoding: temperature {decoding.temperature:g}, seed {decoding.seed}, input tokens up to "
        f"{decoding.input_tokens_max:,}, output tokens {' then '.join(map(str, decoding.output_tokens_max))}\n"
        f"- pinned at {version.pinned_at}\n\n"
        "A materialized partition is a sealed shard and is never computed again. Materialize what is missing; a run "
        "that ended early is finished with **Re-execute**."
    )


def _changes(version: JobVersion) -> str:
    if version.changes is None:
        return ""
    removed = version.changes.removed.rows if version.changes.removed is not None else 0
    return (
        f"It holds changes to `{version.changes.base}`, and removes {removed:,} records. Publishing merges the two, "
        "while readers still see that version.\n\n"
    )


def _batch(version: JobVersion) -> dict[str, dg.MetadataValue]:
    """The name of a file, so it is shown as text only."""
    name = version.changes.batch if version.changes is not None else None
    return {} if name is None else {"batch": dg.MetadataValue.text(str(clip(name)))}


def _columns(deployment: Deployment, version: JobVersion) -> dict[str, dg.TableSchema]:
    """The columns of the sealed files; nothing when the snapshot is out of reach, which running will say."""
    try:
        model = output_model(deployment, version)
        sealed = sealed_schema(version, model, deployment.reader(version).schema())
    except (BatchAssetsError, ValueError):  # ValueError: a schema that this Python can no longer load
        return {}
    described = _described_fields(model, version.snapshot.record_id)
    roles = {
        **dict.fromkeys(version.snapshot.access_labels, "access label of the record"),
        **dict.fromkeys(RESERVED, "where the row came from"),
        RECORD_CLASS: "class of the record",
    }
    return {"dagster/column_schema": dg.TableSchema([_column(one, described, roles) for one in sealed])}


def column_descriptions(deployment: Deployment, version: JobVersion) -> dict[str, str | None]:
    """What each column of the version's table means, as far as it is known."""
    schema = _columns(deployment, version).get("dagster/column_schema")
    return {column.name: column.description for column in schema.columns} if schema is not None else {}


def _described_fields(model: type[BaseModel], record_id: str) -> dict[str, dg.TableColumn]:
    """The schema's fields with pandera's constraints in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        schema = pandera_schema_to_dagster_type(table_schema(model, record_id)).metadata["schema"]
    assert isinstance(schema, dg.TableSchemaMetadataValue)
    return {column.name: column for column in schema.schema.columns}


def _column(sealed: pa.Field, described: Mapping[str, dg.TableColumn], roles: Mapping[str, str]) -> dg.TableColumn:
    known = described.get(sealed.name)
    if known is None:
        bare = dg.TableColumnConstraints(nullable=sealed.nullable)
        return dg.TableColumn(sealed.name, str(without_dictionaries(sealed.type)), roles.get(sealed.name), bare)
    held = known.constraints
    constraints = dg.TableColumnConstraints(
        nullable=held.nullable, unique=held.unique, other=[text for text in held.other if text != _NOT_FOR_PEOPLE]
    )
    return dg.TableColumn(sealed.name, str(without_dictionaries(sealed.type)), known.description, constraints)
