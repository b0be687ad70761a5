"""The script of a scripted engine: which records misbehave, and how.

    defaults: {delay_s: 0.01, start_s: 2}
    requests_log: requests.jsonl          # relative to the script's folder
    records:
      T-0007: {text: '{"category": "billing"}'}
      T-0008: {finish_reason: length, text: '{"cat'}
      T-0009: {error: out of memory}
      T-0010: {fail_attempts: 2}          # fails twice, then answers
      T-0011: {never_returns: true}
      T-0012: {kills_engine: true}
      T-0013: {delay_s: 1.5}
      T-0014: {kills_worker: true}        # as kill -9 of the whole worker
      T-0015: {hangs_engine: true}        # alive, and silent until it is started again

The line `records:` may be left out and the ids written at the top level. Records that are not named
are answered at once, after the default delay.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from batch_assets.errors import SpecError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_OUTCOMES = ("text", "error", "never_returns", "kills_engine", "kills_worker", "hangs_engine")


class Behaviour(_Strict):
    """What happens to one record. Left out means: as without a script."""

    text: str | None = Field(None, description="the answer, as it is")
    finish_reason: Literal["stop", "length"] = Field("stop", description="length: the answer was cut off")
    error: str | None = Field(None, description="the request fails with this message")
    fail_attempts: int = Field(0, ge=0, description="the first so many attempts fail")
    never_returns: bool = Field(False, description="the request is never answered")
    kills_engine: bool = Field(False, description="the engine dies of it, and with it all requests in flight")
    kills_worker: bool = Field(False, description="the worker's process dies of it, as by kill -9")
    hangs_engine: bool = Field(False, description="the engine stays alive and answers nothing more")
    delay_s: float | None = Field(None, ge=0, description="from submission to whatever happens")

    @model_validator(mode="after")
    def _one_outcome(self) -> Behaviour:
        if not self.model_fields_set:
            raise ValueError(f"says nothing; give at least one of {', '.join(Behaviour.model_fields)}")
        outcomes = [name for name in _OUTCOMES if getattr(self, name)]
        if len(outcomes) > 1:
            raise ValueError(f"has {' and '.join(outcomes)}; only one of them can happen")
        return self


class Defaults(_Strict):
    """What holds for every record, and for the engine itself."""

    delay_s: float = Field(0.0, ge=0, description="from submission to answer")
    start_s: float = Field(0.0, ge=0, description="how long the engine takes to start")
    process: bool = Field(False, description="the engine lives in a process of its own, and dies with it")


class Script(_Strict):
    """A whole script file."""

    defaults: Defaults = Defaults()
    requests_log: Path | None = Field(None, description="one JSON line per request served; relative to the script")
    records: dict[str, Behaviour] = Field(default_factory=dict)

    @field_validator("records", mode="before")
    @classmethod
    def _ids_are_strings(cls, records: Any) -> Any:
        """YAML reads an unquoted 17 as a number; record ids are strings."""
        if not isinstance(records, dict):
            return records
        for record_id in records:
            if isinstance(record_id, bool) or not isinstance(record_id, str | int):
                raise ValueError(f"has the record id {record_id!r}, which YAML does not read as text; put it in quotes")
        return {str(record_id): behaviour for record_id, behaviour in records.items()}


def load_script(path: Path | None) -> Script:
    """Read a script; no path means no faults.

    Raises SpecError naming file, key and what is valid there.
    """
    if path is None:
        return Script()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"The engine's script {path} cannot be read ({error.strerror}). Correct engine.script in defs.yaml."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"The engine's script {path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        script = Script.model_validate({} if content is None else _gather_records(content))
    except ValidationError as error:
        raise SpecError(f"{path}: {_explain(error)}") from error
    if script.requests_log is None:
        return script
    return script.model_copy(update={"requests_log": path.parent / script.requests_log})


def _gather_records(content: Any) -> Any:
    """Short form: record ids may stand at the top level, beside `defaults` and `requests_log`.

    Only what is a behaviour, under a name that is no slip of a known key, is taken for a record.
    """
    if not isinstance(content, dict) or not isinstance(content.get("records", {}), dict):
        return content
    short = {key: value for key, value in content.items() if _is_record(key, value)}
    if not short:
        return content
    rest = {key: value for key, value in content.items() if key not in short}
    return {**rest, "records": {**rest.get("records", {}), **short}}


def _is_record(key: object, value: object) -> bool:
    if key in Script.model_fields or difflib.get_close_matches(str(key), list(Script.model_fields), n=1, cutoff=0.8):
        return False
    return isinstance(value, dict) and bool(value) and set(value) <= set(Behaviour.model_fields)


def _explain(error: ValidationError) -> str:
    """The first problem: where it is, what was found, what is valid."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the file"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg'].removeprefix('Value error, ')}, found {first['input']!r}."
    valid = list(_model_at(first["loc"]).model_fields)
    near = difflib.get_close_matches(str(first["loc"][-1]), valid, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{where} is not a known key; valid here are {', '.join(valid)}.{hint}"


def _model_at(location: tuple[int | str, ...]) -> type[_Strict]:
    if len(location) == 1:
        return Script
    return Defaults if location[0] == "defaults" else Behaviour
