"""Job folders: finding them, and reading one into a checked `Job`.

Everything that can be known without opening the snapshot or the model is checked here, and each
mistake is one error that names the file, the key, what was found and what is valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from batch_assets.core.output_schema import (
    SchemaSourceError,
    enum_fields,
    enum_values,
    field_adapter,
    load_output_model,
    plain,
)
from batch_assets.core.prompt import PromptError, PromptTemplate, parse_prompt
from batch_assets.core.spec import JobSpec
from batch_assets.core.spec_errors import describe
from batch_assets.engine.script import load_script
from batch_assets.errors import SpecError
from batch_assets.operations.strict_yaml import StrictLoader
from batch_assets.settings import Settings
from batch_assets.storage.sealed import RESERVED
from batch_assets.storage.typed import UnsupportedType, arrow_fields

COMPONENT = "batch_assets.assets.BatchInferenceJob"
SPEC_FILE = "defs.yaml"
PACKAGED = Path(__file__).parent.parent / "defs"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job folder as it is now."""

    folder: Path
    spec: JobSpec
    prompt_text: str
    template: PromptTemplate
    schema_source: str
    output_model: type[BaseModel]

    @property
    def name(self) -> str:
        return self.spec.job

    @property
    def category_field(self) -> str | None:
        """The field whose distribution is watched: as set, or the first enum field."""
        return self.spec.gate.drift.field or next(iter(enum_fields(self.output_model)), None)

    @property
    def evaluated_field(self) -> str | None:
        """The field compared with the golden labels."""
        evaluation = self.spec.gate.evaluation
        return (evaluation.field if evaluation else None) or next(iter(enum_fields(self.output_model)), None)

    def golden(self) -> dict[str, Any]:
        """Golden labels: record id as text → expected value of the evaluated field."""
        evaluation = self.spec.gate.evaluation
        if evaluation is None or self.evaluated_field is None:
            return {}
        return _read_golden(self.folder / evaluation.golden, self.spec.snapshot.record_id, self)

    @property
    def required_checks(self) -> tuple[str, ...]:
        """The checks that must have passed, if blocking, before a version is published."""
        evaluation = ("evaluation",) if self.spec.gate.evaluation is not None else ()
        return ("coverage", "schema", "drift", *evaluation, "dead_letters")


def find_job_folders(settings: Settings) -> list[Path]:
    """Folders that hold a `defs.yaml`: the packaged jobs, then those of BATCH_ASSETS_JOBS."""
    roots = [PACKAGED]
    if settings.jobs is not None:
        root = settings.jobs.expanduser().absolute()
        if not root.is_dir():
            raise SpecError(
                f"BATCH_ASSETS_JOBS names {root}, which is not a directory. Create it or unset the variable."
            )
        roots.append(root)
    folders = [path.parent for root in roots for path in sorted(root.glob(f"*/{SPEC_FILE}"))]
    if settings.jobs is not None and (roots[-1] / SPEC_FILE).is_file():
        folders.append(roots[-1])
    return folders


def load_jobs(settings: Settings) -> dict[str, Job]:
    """All jobs by name. Raises SpecError for a folder that is not valid, or a name used twice."""
    return {name: load_job(folder) for name, folder in job_names(settings).items()}


def find_job(settings: Settings, name: str) -> Job:
    """One job by name, without loading the others. Raises SpecError naming the jobs there are."""
    known = job_names(settings)
    if name in known:
        return load_job(known[name])
    raise SpecError(
        f"There is no job {name!r}; the jobs are {', '.join(known)}. Set BATCH_ASSETS_JOBS to add a directory."
    )


def job_names(settings: Settings) -> dict[str, Path]:
    """The folders by the job name that each claims; nothing else of them is checked.

    Raises SpecError for a name that two folders claim.
    """
    folders: dict[str, Path] = {}
    for folder in find_job_folders(settings):
        name = _job_name(folder) or folder.name
        if name in folders:
            raise SpecError(
                f"{folder / SPEC_FILE}: key 'job': {name!r} is the name of {folders[name]} already; "
                "give one of them another name."
            )
        folders[name] = folder
    return folders


def load_job(folder: Path) -> Job:
    """Read and check one job folder."""
    document = _read_yaml(folder / SPEC_FILE)
    unknown = sorted(set(document) - {"type", "attributes"})
    if unknown:
        raise SpecError(f"{folder / SPEC_FILE}: unknown key {unknown[0]!r}; valid keys are type, attributes.")
    if document.get("type") != COMPONENT:
        raise SpecError(f"{folder / SPEC_FILE}: key 'type': found {document.get('type')!r}; it must be {COMPONENT}.")
    return job_from_attributes(folder, document.get("attributes"))


def job_from_attributes(folder: Path, attributes: object) -> Job:
    """Check the attributes of a `defs.yaml` together with the files that they name."""
    where = folder / SPEC_FILE
    if not isinstance(attributes, Mapping):
        raise SpecError(f"{where}: key 'attributes' must hold the job's keys; found {type(attributes).__name__}.")
    try:
        spec = JobSpec.model_validate(dict(attributes))
    except ValidationError as error:
        raise SpecError(f"{where}: {describe(error, JobSpec)}") from None
    prompt_text = _read_file(folder, spec.prompt.file, "prompt.file")
    schema_source = _read_file(folder, spec.output_schema, "output_schema")
    try:
        template = parse_prompt(prompt_text)
        model = load_output_model(schema_source, where=str(folder / spec.output_schema))
    except PromptError as error:
        raise SpecError(f"{folder / spec.prompt.file} {error}.") from None
    except SchemaSourceError as error:
        raise SpecError(f"{error}.") from None
    job = Job(
        folder=folder,
        spec=spec,
        prompt_text=prompt_text,
        template=template,
        schema_source=schema_source,
        output_model=model,
    )
    _check_schema(job)
    _check_gate(job)
    if spec.engine.script is not None:
        _read_file(folder, spec.engine.script, "engine.script")
        load_script(folder / spec.engine.script)
    return job


def _job_name(folder: Path) -> str | None:
    try:
        attributes = _read_yaml(folder / SPEC_FILE).get("attributes")
    except SpecError:
        return None  # said when that job itself is asked for; it must not hide the others
    name = attributes.get("job") if isinstance(attributes, Mapping) else None
    return name if isinstance(name, str) else None


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise SpecError(f"{path} is missing; every job folder needs one.")
    try:
        document = yaml.load(_read_text(path), Loader=StrictLoader)
    except yaml.YAMLError as error:
        raise SpecError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(document, dict):
        raise SpecError(f"{path} must hold the keys type and attributes; found {type(document).__name__}.")
    return document


def _read_file(folder: Path, name: str, key: str) -> str:
    path = folder / name
    if not path.is_file():
        raise SpecError(f"{folder / SPEC_FILE}: key {key!r}: found {name!r}, but there is no file {path}.")
    return _read_text(path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}).") from None


def _check_schema(job: Job) -> None:
    where = job.folder / job.spec.output_schema
    try:
        arrow_fields(job.output_model)
        job.output_model.model_json_schema()
    except UnsupportedType as error:
        raise SpecError(f"{where}: {error}.") from None
    except Exception as error:  # pydantic raises several kinds for annotations without a JSON schema
        raise SpecError(f"{where}: the model has no JSON schema: {error}") from None
    snapshot = job.spec.snapshot
    taken: dict[str, str] = {name.lower(): name for name in RESERVED}
    for name in (snapshot.record_id, *snapshot.access_labels):
        if name.lower() in taken:
            raise SpecError(
                f"{job.folder / SPEC_FILE}: the snapshot column {name!r} has the name of a column that every result "
                "carries already; rename it in the snapshot."
            )
        taken[name.lower()] = name
    for name in job.output_model.model_fields:  # SQL does not tell upper from lower case
        if name.lower() in taken:
            raise SpecError(
                f"{where}: field {name!r} clashes with the column {taken[name.lower()]!r} of the same table; rename the field."
            )
        taken[name.lower()] = name


def _check_gate(job: Job) -> None:
    where = job.folder / SPEC_FILE
    fields = list(job.output_model.model_fields)
    gate = job.spec.gate
    named = {"gate.drift.field": gate.drift.field}
    if gate.evaluation is not None:
        named["gate.evaluation.field"] = gate.evaluation.field
    for key, field in named.items():
        if field is not None and field not in fields:
            raise SpecError(
                f"{where}: key {key!r}: found {field!r}; the output schema's fields are {', '.join(fields)}."
            )
    if gate.evaluation is None:
        return
    if job.evaluated_field is None:
        raise SpecError(
            f"{where}: key 'gate.evaluation.field' is missing, and the output schema has no enum field to compare."
        )
    job.golden()


def _read_golden(path: Path, id_column: str, job: Job) -> dict[str, Any]:
    if not path.is_file():
        raise SpecError(f"{job.folder / SPEC_FILE}: key 'gate.evaluation.golden': there is no file {path}.")
    field = job.evaluated_field or ""
    info = job.output_model.model_fields[field]
    allowed = enum_values(info.annotation)
    typed = field_adapter(info)
    labels: dict[str, Any] = {}
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            record_id, label = str(row[id_column]), row[field]
            record_id.encode()  # half a surrogate pair is no id of any record
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SpecError(
                f"{path}, line {number}: needs an object with the keys {id_column!r} and {field!r} "
                f"({type(error).__name__}: {error})."
            ) from None
        if allowed and label not in allowed:
            raise SpecError(f"{path}, line {number}: {field} is {label!r}; valid values are {', '.join(allowed)}.")
        try:
            labels[record_id] = plain(typed.validate_json(json.dumps(label)))
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"]
            raise SpecError(f"{path}, line {number}: {field} is {label!r}: {message}.") from None
    if not labels:
        raise SpecError(f"{path} holds no golden label; add some, or remove gate.evaluation from {SPEC_FILE}.")
    return labels
