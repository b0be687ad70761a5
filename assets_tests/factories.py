"""Small job folders on the scripted engine, for tests of everything around the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from batch_assets.operations.jobs import COMPONENT

# A gate that lets versions with other answers follow each other.
ANY_DRIFT = {"psi_max": 100.0, "total_variation_max": 1.0, "category_move_max": 1.0, "length_distance_max": 1.0}
CATEGORIES = ("billing", "bug", "question")

OUTPUT_SCHEMA = """\
from typing import Literal

from pydantic import BaseModel, Field


class Output(BaseModel):
    category: Literal["billing", "bug", "question"] = Field(description="what the record is about")
    summary: str = Field(max_length=200, description="one sentence")
    entities: list[str] = Field(max_length=5, description="names and numbers found in the text")
"""

PROMPT = """\
Sort the record into a category, summarize it in one sentence and list its entities.
<!-- record -->
Subject: {{ subject }}

{{ body }}
"""


def record_id(number: int) -> str:
    return f"R-{number:05d}"


def make_records(count: int) -> list[dict[str, Any]]:
    """Records with the usual columns: id, two texts, a class and an access label."""
    return [
        {
            "record_id": record_id(number),
            "subject": f"Subject {number}",
            "body": f"This is the body of record {number}; it mentions order {1000 + number}.",
            "record_class": "internal" if number % 5 == 0 else "public",
            "acl": f"team-{number % 3}",
        }
        for number in range(count)
    ]


def make_job(
    folder: Path,
    *,
    name: str = "tiny",
    records: int | Sequence[Mapping[str, Any]] = 20,
    shard_size: int = 5,
    script: Mapping[str, Any] | None = None,
    golden: Mapping[str, str] | None = None,
    gate: Mapping[str, Any] | None = None,
    prompt: str = PROMPT,
    output_schema: str = OUTPUT_SCHEMA,
    snapshot: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    **spec: Any,
) -> Path:
    """Write a job folder `folder/name` and return it; anything of the spec can be set or replaced.

    `script` is the script of the scripted engine, `golden` maps record ids to categories, `files` holds texts
    of more files by name. Writing
    again over the same folder is how a test edits a job.
    """
    job = folder / name
    job.mkdir(parents=True, exist_ok=True)
    rows = make_records(records) if isinstance(records, int) else [dict(row) for row in records]
    pq.write_table(pa.Table.from_pylist(rows), job / "records.parquet")
    (job / "prompt.md").write_text(prompt)
    (job / "output_schema.py").write_text(output_schema)
    for other, text in (files or {}).items():
        (job / other).write_text(text)
    gates: dict[str, Any] = {"drift": ANY_DRIFT, **(gate or {})}
    if golden is not None:
        lines = [json.dumps({"record_id": key, "category": label}) for key, label in golden.items()]
        (job / "golden.jsonl").write_text("\n".join(lines) + "\n")
        gates.setdefault("evaluation", {"accuracy_min": 0.0})
    attributes = {
        "job": name,
        "snapshot": {
            "path": "records.parquet",
            "record_id": "record_id",
            "text": ["subject", "body"],
            "record_class": "record_class",
            "access_labels": ["acl"],
            **(snapshot or {}),
        },
        "decoding": {"input_tokens_max": 2000},
        "shard_size": shard_size,
        "engine": {"kind": "scripted", **({"script": "script.yaml"} if script is not None else {}), **(engine or {})},
        "gate": gates,
        **spec,
    }
    if script is not None:
        write_script(job, script)
    (job / "defs.yaml").write_text(yaml.safe_dump({"type": COMPONENT, "attributes": attributes}, sort_keys=False))
    return job


def write_script(job: Path, script: Mapping[str, Any]) -> None:
    """Give a job another script; which faults happen is not part of its version."""
    (job / "script.yaml").write_text(yaml.safe_dump(dict(script)))


def requests_served(log: Path) -> list[str]:
    """The record ids that the scripted engine was asked for, in order; `log` is the script's `requests_log`."""
    if not log.is_file():
        return []
    return [str(json.loads(line)["record_id"]) for line in log.read_text().splitlines()]
