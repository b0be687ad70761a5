"""The job spec: what an author asks for, as written in `defs.yaml`.

Here are the shape of the file and the rules a single value must obey. Whether files exist or
columns match is the business of `operations/jobs.py`, which can look at the disk.

Only the parts listed in `core/version.py` decide a version's id. Everything else here (workers,
leases, engine options, gate thresholds) can change between two runs of the same version.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

# Names become asset keys, folder names and SQL identifiers, so they are kept to what all three allow.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SAMPLE_MAX = 5000  # graded results are held in memory, each with its record


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

    path: str = Field(description="a file, a folder, a glob or a table's address; relative to the job folder")
    format: Literal["auto", "parquet", "jsonl", "csv", "delta", "iceberg"] = "auto"
    version: int | None = Field(None, ge=0, description="of a Delta table; the latest when left out")
    snapshot_id: int | None = Field(None, description="of an Iceberg table; the current one when left out")
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

    @model_validator(mode="after")
    def _versions_are_of_tables(self) -> SnapshotSpec:
        for key, kind in (("version", "delta"), ("snapshot_id", "iceberg")):
            if getattr(self, key) is not None and self.format != kind:
                raise ValueError(f"{key} is for format: {kind} only; set the format or remove {key}")
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
    """Results against the published version. What fails is beyond its maximum and beyond chance."""

    field: str | None = Field(None, description="an enum field of the output schema; the first one by default")
    psi_max: float = Field(0.25, ge=0, description="population stability index; 0.25 is the usual alarm level")
    total_variation_max: float = Field(0.1, ge=0, le=1, description="share of records in another category, net")
    category_move_max: float = Field(0.01, ge=0, le=1, description="change of one category's share; 0.01 is a point")
    length_distance_max: float = Field(0.1, ge=0, le=1, description="Kolmogorov-Smirnov distance of lengths")
    null_move_max: float = Field(0.01, ge=0, le=1, description="change of an optional field's share of nulls")
    churn_max: float | None = Field(None, ge=0, le=1, description="records with another category; only told by default")
    false_alarms: float = Field(0.001, gt=0, lt=0.5, description="how often chance alone may fail each question")
    blocking: bool = True


class GroundednessGate(Strict):
    """What an answer may say only if its record says it."""

    entities: tuple[ColumnName, ...] = Field((), description="fields whose texts must occur in the record")
    summary: ColumnName | None = Field(None, description="a field that is neither empty nor the record itself")
    min: float = Field(0.8, ge=0, le=1, description="share of sampled results, lower end of its interval")

    @model_validator(mode="after")
    def _names_a_field(self) -> GroundednessGate:
        if not self.entities and self.summary is None:
            raise ValueError("names no field; give entities, summary or both")
        return self


class GraderGate(Strict):
    """A function of the job's folder that grades one result."""

    file: str = "graders.py"
    function: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    min: float = Field(ge=0, le=1, description="mean grade of the sample, lower end of its interval")


class JudgeGate(Strict):
    """A second prompt, answered by the job's model on the job's engine, that scores results."""

    prompt: str = "judge.md"
    format: Literal["chat", "plain"] | None = Field(None, description="the job's, when left out")
    output_schema: str = "judge_schema.py"
    score: ColumnName = Field(description="field of the judge's schema: a bool, or a number from 0 to 1")
    min: float = Field(ge=0, le=1, description="mean score of the sample, lower end of its interval")
    sample: int = Field(200, ge=1, le=SAMPLE_MAX)
    decoding: DecodingSpec | None = Field(None, description="the job's, when left out")
    script: str | None = Field(None, description="scripted engine only: the judge's own script")


class EvaluationGate(Strict):
    """Grades of a sample of results; every minimum is compared with the lower end of a 95 % interval."""

    golden: str | None = Field(None, description="labels by people; golden.jsonl when a minimum for them is set")
    field: str | None = Field(None, description="field compared; the first enum field by default")
    accuracy_min: float | None = Field(None, ge=0, le=1, description="share of golden records answered as labelled")
    macro_f1_min: float | None = Field(None, ge=0, le=1, description="mean F1 of the labels")
    sample: int = Field(300, ge=1, le=SAMPLE_MAX, description="records whose results are graded")
    sample_seed: int = Field(0, ge=0)
    groundedness: GroundednessGate | None = None
    graders: tuple[GraderGate, ...] = ()
    judge: JudgeGate | None = None
    blocking: bool = True

    @property
    def golden_file(self) -> str | None:
        """The file of golden labels; None when the suite has none."""
        if self.accuracy_min is None and self.macro_f1_min is None:
            return None
        return self.golden or "golden.jsonl"

    @model_validator(mode="after")
    def _asks_for_something(self) -> EvaluationGate:
        if self.golden is not None and self.golden_file is None:
            raise ValueError("golden labels need a minimum; add accuracy_min (or macro_f1_min)")
        if self.golden_file is None and not (self.groundedness or self.graders or self.judge):
            raise ValueError("asks for nothing; add accuracy_min, macro_f1_min, groundedness, graders or judge")
        names = [grader.function for grader in self.graders]
        if len(set(names)) != len(names):
            raise ValueError("names a grader's function twice; functions need different names")
        return self


class DeadLetterGate(Strict):
    """How many records may be given up."""

    rate_max: float = Field(0.01, ge=0, le=1)
    cluster_ratio_max: float | None = Field(
        5.0, gt=1, description="rate of one kind of input over the rest's; null: off"
    )
    cluster_min: int = Field(5, ge=1, description="fewer dead letters of a kind are no cluster")
    false_alarms: float = Field(0.001, gt=0, lt=0.5, description="how often chance alone may make a cluster")
    blocking: bool = True


class GateSpec(Strict):
    """Thresholds of the checks. Coverage, schema, access_labels and one_recipe have none: they are always on
    and always block."""

    drift: DriftGate = DriftGate()
    evaluation: EvaluationGate | None = None
    dead_letters: DeadLetterGate = DeadLetterGate()


_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def _fits_cron(field: str, bounds: tuple[int, int]) -> bool:
    """Whether one field of a cron line is a list of numbers, ranges and steps within its bounds."""
    for part in field.split(","):
        match = re.fullmatch(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", part)
        if match is None or (match[3] is not None and int(match[3]) == 0):
            return False
        numbers = [int(text) for text in (match[1], match[2]) if text is not None]
        if numbers != sorted(numbers) or not all(bounds[0] <= number <= bounds[1] for number in numbers):
            return False
    return True


class NightlySpec(Strict):
    """The round that publishes changes by itself, batch by batch."""

    batches: str = Field(
        description="a folder with one entry a night, in the order of their names; relative to the job"
    )
    cron: str = Field("0 1 * * *", description="when to look for batches; five fields, as cron has them")
    timezone: str = Field("UTC", description="an IANA name, such as Europe/Berlin")
    enabled: bool = Field(True, description="whether the schedule runs from the start; the UI can switch it")

    @field_validator("cron")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        fields = text.split()
        fits = len(fields) == len(_CRON_RANGES) and all(map(_fits_cron, fields, _CRON_RANGES))
        if not fits:
            raise ValueError(
                f"{text!r} is no time as cron has them: five fields for minute, hour, day, month and weekday, such as "
                "0 1 * * * for one o'clock each night"
            )
        return text

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ValueError, OSError, KeyError):
            raise ValueError(f"{name!r} is no time zone; use an IANA name such as Europe/Berlin") from None
        return name


class RetentionSpec(Strict):
    """Whose files `batch-assets sweep` leaves where they are."""

    keep: int = Field(3, ge=1, description="the last published versions, to roll back to")
    grace_h: float = Field(24, ge=0, description="hours for which readers may still have a replaced version open")


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
    retention: RetentionSpec = RetentionSpec()
    nightly: NightlySpec | None = Field(None, description="publish changes by a schedule; none when left out")

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
