"""Job folders: finding them, and reading one into a checked `Job`.

Everything that can be known without opening the snapshot or the model is checked here, and each
mistake is one error that names the file, the key, what was found and what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from batch_assets.core.judges import folder_job, is_judge, judge_of
from batch_assets.core.output_schema import enum_fields
from batch_assets.core.prompt import PromptTemplate
from batch_assets.core.spec import GateSpec, JobSpec, PromptSpec
from batch_assets.core.spec_errors import describe
from batch_assets.engine.script import load_script
from batch_assets.errors import SpecError
from batch_assets.operations.job_files import SPEC_FILE, read_file, read_text, to_model, to_template
from batch_assets.operations.strict_yaml import StrictLoader
from batch_assets.operations.suite import Suite, check_field, load_suite, read_golden
from batch_assets.settings import Settings
from batch_assets.storage.sealed import RESERVED

COMPONENT = "batch_assets.assets.BatchInferenceJob"
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
    suite: Suite

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
        evaluation, field = self.spec.gate.evaluation, self.evaluated_field
        if evaluation is None or evaluation.golden_file is None or field is None:
            return {}
        return read_golden(
            self.folder / evaluation.golden_file,
            where=self.folder / SPEC_FILE,
            id_column=self.spec.snapshot.record_id,
            field=field,
            info=self.output_model.model_fields[field],
        )

    @property
    def required_checks(self) -> tuple[str, ...]:
        """The checks that must have passed, if blocking, before a version is published."""
        evaluation = ("evaluation",) if self.spec.gate.evaluation is not None else ()
        return ("coverage", "schema", "drift", *evaluation, "dead_letters", "access_labels", "one_recipe")


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
    if is_judge(name):
        return judge_job(find_job(settings, folder_job(name)))
    if name in known:
        return load_job(known[name])
    raise SpecError(
        f"There is no job {name!r}; the jobs are {', '.join(known)}. Set BATCH_ASSETS_JOBS to add a directory."
    )


def judge_job(job: Job) -> Job:
    """The judge of a job as a job of its own: its prompt and schema, the job's model and engine.

    Raises SpecError when the folder has no judge.
    """
    judge = job.suite.judge
    if judge is None:
        raise SpecError(
            f"{job.folder / SPEC_FILE}: there is no gate.evaluation.judge; versions of {judge_of(job.name)} need it. "
            "Nothing that is stored is lost."
        )
    changed = {
        "job": judge_of(job.name),
        "label": "judge",
        "prompt": PromptSpec(file=judge.gate.prompt, format=judge.gate.format or job.spec.prompt.format),
        "decoding": judge.gate.decoding or job.spec.decoding,
        "output_schema": judge.gate.output_schema,
        "engine": job.spec.engine.model_copy(update={"script": judge.gate.script}),
        "gate": GateSpec(),
    }
    return Job(
        folder=job.folder,
        spec=job.spec.model_copy(update=changed),
        prompt_text=judge.prompt_text,
        template=judge.template,
        schema_source=judge.schema_source,
        output_model=judge.output_model,
        suite=Suite(),
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
    prompt_text = read_file(folder, spec.prompt.file, "prompt.file")
    schema_source = read_file(folder, spec.output_schema, "output_schema")
    template = to_template(prompt_text, folder / spec.prompt.file)
    model = to_model(schema_source, folder / spec.output_schema)
    job = Job(
        folder=folder,
        spec=spec,
        prompt_text=prompt_text,
        template=template,
        schema_source=schema_source,
        output_model=model,
        suite=load_suite(folder, spec.gate.evaluation, model),
    )
    _check_schema(job)
    _check_gate(job)
    if spec.engine.script is not None:
        read_file(folder, spec.engine.script, "engine.script")
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
        document = yaml.load(read_text(path), Loader=StrictLoader)
    except yaml.YAMLError as error:
        raise SpecError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(document, dict):
        raise SpecError(f"{path} must hold the keys type and attributes; found {type(document).__name__}.")
    return document


def _check_schema(job: Job) -> None:
    where = job.folder / job.spec.output_schema
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
    gate = job.spec.gate
    named = {"gate.drift.field": gate.drift.field}
    if gate.evaluation is not None:
        named["gate.evaluation.field"] = gate.evaluation.field
    for key, field in named.items():
        if field is not None:
            check_field(where, key, field, job.output_model)
    if gate.evaluation is None or gate.evaluation.golden_file is None:
        return
    if job.evaluated_field is None:
        raise SpecError(
            f"{where}: key 'gate.evaluation.field' is missing, and the output schema has no enum field to compare."
        )
    job.golden()
