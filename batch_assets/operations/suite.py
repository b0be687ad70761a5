"""A job's suite of grades: golden labels, graders and the judge, as its folder has them now."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from batch_assets.core.graders import Grader, GraderSourceError, load_graders
from batch_assets.core.output_schema import enum_values, field_adapter, plain
from batch_assets.core.prompt import PromptTemplate
from batch_assets.core.spec import EvaluationGate, GraderGate, GroundednessGate, JudgeGate
from batch_assets.engine.script import load_script
from batch_assets.errors import SpecError
from batch_assets.operations.job_files import SPEC_FILE, read_file, read_text, to_model, to_template

RESULT = "result"  # in the judge's prompt: the whole answer as JSON; `result.FIELD` is one field of it


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The judge's files."""

    gate: JudgeGate
    prompt_text: str
    template: PromptTemplate
    schema_source: str
    output_model: type[BaseModel]

    @property
    def record_columns(self) -> list[str]:
        """The snapshot's columns that its template names; all others are of the result."""
        return [name for name in self.template.columns if not _is_of_result(name)]

    def standard(self) -> list[str]:
        """Digests of what it judges by."""
        return [hashlib.sha256(text.encode()).hexdigest() for text in (self.prompt_text, self.schema_source)]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What grades a sample besides the golden labels."""

    graders: tuple[Grader, ...] = ()
    judge: Judge | None = None

    def standard(self) -> list[list[str]]:
        """What the grades hang on: other texts are another standard."""
        return [[one.name, one.sha256] for one in self.graders] + ([self.judge.standard()] if self.judge else [])


def load_suite(folder: Path, gate: EvaluationGate | None, model: type[BaseModel]) -> Suite:
    """Read graders and judge, and check the fields that the suite names.

    Raises SpecError naming file, key, what was found and what is valid.
    """
    if gate is None:
        return Suite()
    if gate.groundedness is not None:
        _check_groundedness(folder, gate.groundedness, model)
    graders = tuple(_load_grader(folder, number, grader) for number, grader in enumerate(gate.graders))
    return Suite(graders=graders, judge=None if gate.judge is None else _load_judge(folder, gate.judge, model))


def read_golden(path: Path, *, where: Path, id_column: str, field: str, info: FieldInfo) -> dict[str, Any]:
    """Golden labels: record id as text → expected value of the field. Raises SpecError naming the line."""
    if not path.is_file():
        raise SpecError(f"{where}: key 'gate.evaluation.golden': there is no file {path}.")
    allowed = enum_values(info.annotation)
    typed = field_adapter(info)
    labels: dict[str, Any] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
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


def check_field(where: Path, key: str, field: str, model: type[BaseModel]) -> FieldInfo:
    """A field of the output schema. Raises SpecError naming those that there are."""
    info = model.model_fields.get(field)
    if info is None:
        raise SpecError(
            f"{where}: key {key!r}: found {field!r}; the output schema's fields are {', '.join(model.model_fields)}."
        )
    return info


def _check_groundedness(folder: Path, gate: GroundednessGate, model: type[BaseModel]) -> None:
    where, section = folder / SPEC_FILE, "gate.evaluation.groundedness"
    for field in gate.entities:
        info = check_field(where, f"{section}.entities", field, model)
        if not _is_text(field_adapter(info).json_schema(), or_list=True):
            raise SpecError(
                f"{where}: key '{section}.entities': found {field!r}, which holds neither free text nor a list of it; "
                "only such fields can be looked up in a record."
            )
    if gate.summary is not None:
        info = check_field(where, f"{section}.summary", gate.summary, model)
        if not _is_text(field_adapter(info).json_schema(), or_list=False):
            raise SpecError(
                f"{where}: key '{section}.summary': found {gate.summary!r}, which is no field of free text."
            )


def _is_text(schema: Mapping[str, Any], *, or_list: bool) -> bool:
    """Free text, perhaps optional; or a list of it."""
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return bool(kinds) and all(_is_text(one, or_list=or_list) for one in kinds)
    if schema.get("type") == "array":
        return or_list and _is_text(schema.get("items", {}), or_list=False)
    return schema.get("type") == "string" and "enum" not in schema and "const" not in schema


def _load_grader(folder: Path, number: int, gate: GraderGate) -> Grader:
    key = f"gate.evaluation.graders.{number}"
    source = read_file(folder, gate.file, f"{key}.file")
    where = str(folder / gate.file)
    try:
        functions = load_graders(source, where=where)
    except GraderSourceError as error:
        raise SpecError(f"{error}. Mend the file, or remove the grader from {SPEC_FILE}.") from None
    function = functions.get(gate.function)
    if function is None:
        raise SpecError(
            f"{folder / SPEC_FILE}: key '{key}.function': found {gate.function!r}{_near(gate.function, functions)}; the "
            f"functions of {gate.file} are {', '.join(functions) or 'none'}."
        )
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    return Grader(name=gate.function, function=function, where=where, sha256=sha256, min=gate.min)


def _load_judge(folder: Path, gate: JudgeGate, model: type[BaseModel]) -> Judge:
    key = "gate.evaluation.judge"
    prompt_text = read_file(folder, gate.prompt, f"{key}.prompt")
    schema_source = read_file(folder, gate.output_schema, f"{key}.output_schema")
    judge = Judge(
        gate=gate,
        prompt_text=prompt_text,
        template=to_template(prompt_text, folder / gate.prompt),
        schema_source=schema_source,
        output_model=to_model(schema_source, folder / gate.output_schema),
    )
    if gate.script is not None:
        read_file(folder, gate.script, f"{key}.script")
        load_script(folder / gate.script)
    _check_template(judge, folder, model)
    _check_score(judge, folder)
    return judge


def _check_template(judge: Judge, folder: Path, model: type[BaseModel]) -> None:
    """It shows the judge something of the result, and names fields that there are."""
    valid = [RESULT, *(f"{RESULT}.{name}" for name in model.model_fields)]
    named = [name for name in judge.template.columns if _is_of_result(name)]
    wrong = [name for name in named if name not in valid]
    if wrong:
        raise SpecError(
            f"{folder / judge.gate.prompt}: the record template names {wrong[0]!r}{_near(wrong[0], valid)}; of the result "
            f"there are {', '.join(valid)}."
        )
    if not named:
        raise SpecError(
            f"{folder / judge.gate.prompt}: the record template shows nothing of the result; write {{{{ {RESULT} }}}} or "
            f"{{{{ {valid[1]} }}}}."
        )


def _is_of_result(column: str) -> bool:
    return column == RESULT or column.startswith(f"{RESULT}.")


def _check_score(judge: Judge, folder: Path) -> None:
    where = folder / judge.gate.output_schema
    info = judge.output_model.model_fields.get(judge.gate.score)
    if info is None:
        raise SpecError(
            f"{folder / SPEC_FILE}: key 'gate.evaluation.judge.score': found {judge.gate.score!r}; the fields of "
            f"{judge.gate.output_schema} are {', '.join(judge.output_model.model_fields)}."
        )
    schema = field_adapter(info).json_schema()
    is_share = (
        schema.get("type") in ("number", "integer")
        and schema.get("minimum", schema.get("exclusiveMinimum", -1)) >= 0
        and schema.get("maximum", schema.get("exclusiveMaximum", 2)) <= 1
    )
    if schema.get("type") != "boolean" and not is_share:
        raise SpecError(
            f"{where}: field {judge.gate.score!r} is the score; it must be a bool, or a number with Field(ge=0, le=1)."
        )


def _near(name: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(valid), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
