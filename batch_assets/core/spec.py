"""The job spec: what an author asks for, as written in `defs.yaml`.

Here are the shape of the file and the rules a single value must obey. Whether files exist or
columns match is the business of `operations/jobs.py`, which can look at the disk.

Only the parts listed in `core/version.py` decide a version's id. Everything else here (workers,
leases, engine options, gate thresholds) can change between two runs of the same version.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

# Names become asset keys, folder names and SQL identifiers, so they are kept to what all three allow.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class Strict(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_yes_for_a_number(cls, data: Any) -> Any:
        """YAML's `true` is 1 to Python; a number that was meant is written as one."""
        if isinstance(data, dict):
            for key, value in data.items():
                info = cls.model_fields.get(str(key))
                if isinstance(value, bool) and info is not None and info.annotation is not bool:
                    raise ValueError(f"{key} is {str(value).lower()}, which is no value for it")
        return data


class SnapshotSpec(Strict):
    """Where the input records are, and which columns mean what."""

    path: str = Field(description="a file, a folder or a glob; relative to the job folder")
    format: Literal["auto", "parquet", "jsonl", "csv"] = "auto"
    rows: int | None = Field(None, ge=1, description="take only the first rows; all when left out")
    record_id: ColumnName = Field(description="unique, never null: string or integer")
    text: tuple[ColumnName, ...] = Field(min_length=1, description="a record with none of these is empty input")
    record_class: ColumnName | None = None
    access_labels: tuple[ColumnName, ...] = Field((), description="copied to every result unchanged")

    @model_validator(mode="after")
    def _roles_are_distinct(self) -> SnapshotSpec:
        labels = list(self.access_labels)
        if len(set(labels)) != len(labels) or self.record_id in labels:
            raise ValueError("record_id and access_labels must name different columns")
        return self


class ModelSpec(Strict):
    """The model directory and how it is loaded."""

    path: str = Field(description="a model directory; relative to BATCH_ASSETS_MODELS")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: str | None = None


class PromptSpec(Strict):
    """The prompt file and how it is presented to the model."""

    file: str = "prompt.md"
    format: Literal["chat", "plain"] = "chat"


class DecodingSpec(Strict):
    """How answers are generated. All of it is part of the version."""

    input_tokens_max: int = Field(ge=1, description="longer prompts become dead letters when planned")
    output_tokens_max: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (200, 400), min_length=1, max_length=3, description="attempt k may use entry k; the last one repeats"
    )
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    seed: int = Field(0, ge=0)
    stop: tuple[str, ...] = ()

    @field_validator("output_tokens_max", mode="before")
    @classmethod
    def _one_number_is_a_ladder(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    def output_tokens_for(self, attempt: int) -> int:
        """The output cap of the given attempt, counted from 1."""
        return self.output_tokens_max[min(attempt, len(self.output_tokens_max)) - 1]


class EngineSpec(Strict):
    """Which engine runs the job, and its operational options (never part of the version)."""

    kind: Literal["vllm", "scripted"] = "vllm"
    script: str | None = Field(None, description="scripted engine only: file of faults by record id")
    sequences_max: int | None = Field(None, ge=1, description="requests decoded together; the engine's default")
    memory_gib: float | None = Field(None, gt=0, description="CPU only: size of the KV cache")
    gpu_memory_fraction: float = Field(0.9, gt=0, le=1)
    start_deadline_s: float = Field(600, gt=0, description="model load, with room for a slow disk")
    progress_deadline_s: float = Field(300, gt=0, description="no completion for so long: restart the engine")
    record_deadline_s: float = Field(600, gt=0, description="one record in the engine for longer: a failed attempt")
    restarts_max: int = Field(20, ge=0, description="engine restarts of one worker before it gives up")

    @model_validator(mode="after")
    def _script_belongs_to_the_scripted_engine(self) -> EngineSpec:
        if self.script is not None and self.kind != "scripted":
            raise ValueError("script is for engine kind 'scripted' only; remove it or set kind: scripted")
        return self


class DriftGate(Strict):
    """Category distribution against the published version."""

    field: str | None = Field(None, description="an enum field of the output schema; the first one by default")
    psi_max: float = Field(0.25, ge=0, description="population stability index; 0.25 is the usual alarm level")
    blocking: bool = True


class EvaluationGate(Strict):
    """Agreement with labels that people gave."""

    golden: str = "golden.jsonl"
    field: str | None = Field(None, description="field compared; the first enum field by default")
    accuracy_min: float = Field(ge=0, le=1, description="share of golden records answered as labelled")
    blocking: bool = True


class DeadLetterGate(Strict):
    """How many records may be given up."""

    rate_max: float = Field(0.01, ge=0, le=1)
    blocking: bool = True


class GateSpec(Strict):
    """Thresholds of the checks. Coverage and schema are always on and always block."""

    drift: DriftGate = DriftGate()
    evaluation: EvaluationGate | None = None
    dead_letters: DeadLetterGate = DeadLetterGate()


class JobSpec(Strict):
    """One job: a prompt over a snapshot with a model."""

    job: Name
    label: Name = Field("v1", description="for people; the version's id is <label>_<digest>")
    snapshot: SnapshotSpec
    model: ModelSpec | None = Field(None, description="required unless engine.kind is scripted")
    prompt: PromptSpec = PromptSpec()
    decoding: DecodingSpec
    output_schema: str = "output_schema.py"
    shard_size: int = Field(5000, ge=1, description="records leased as one; 2 to 10 minutes of work is good")
    workers: int = Field(1, ge=1, le=256)
    lease_s: float = Field(600, gt=0, description="a silent worker's shard goes to another after this")
    renew_every_s: float = Field(30, gt=0)
    recoveries_max: int = Field(
        5,
        ge=1,
        description="workers lost or failed in a row on a shard, without progress, until it waits for an operator",
    )
    drain_s: float = Field(
        20, gt=0, description="after a stop notice; less than what the scheduler leaves between SIGTERM and SIGKILL"
    )
    engine: EngineSpec = EngineSpec()
    gate: GateSpec = GateSpec()

    @field_validator("job")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        # Beside the table <job> there are the table `history` and the views <job>__history.
        if name == "history" or "__" in name:
            raise ValueError("a job cannot be named 'history', nor have '__' in its name: these are used already")
        return name

    @model_validator(mode="after")
    def _parts_fit_together(self) -> JobSpec:
        if self.model is None and self.engine.kind != "scripted":
            raise ValueError("model is missing; only a job with engine.kind scripted can do without one")
        if self.renew_every_s * 2 > self.lease_s:
            raise ValueError("renew_every_s must be at most half of lease_s, or one lost renewal loses the shard")
        return self
