"""The pandera schema of a version's table, made from the output schema's pydantic model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pandera.pandas as pa
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from batch_assets.core.output_schema import column_adapter, enum_values, field_adapter, is_optional, without_none


def table_schema(model: type[BaseModel], record_id: str) -> pa.DataFrameSchema:
    """One column per field; the record id is unique and never null.

    Enums and bounds become pandera's own checks, so that people read them in the UI; every value is
    also held against the field's pydantic type, which covers nested models and validators.
    """
    columns = {name: _column(name, info) for name, info in model.model_fields.items()}
    columns[record_id] = pa.Column(nullable=False, unique=True, description="record id of the snapshot")
    return pa.DataFrameSchema(columns, strict=False, name=model.__name__)


def _column(name: str, info: FieldInfo) -> pa.Column:
    checks = [*_bounds(info), pa.Check(_conforms(info), name="output_schema", ignore_na=True)]
    if values := enum_values(info.annotation):
        checks.insert(0, pa.Check.isin(list(values)))
    return pa.Column(nullable=is_optional(info), checks=checks, description=info.description)


def _bounds(info: FieldInfo) -> list[pa.Check]:
    """Bounds that pydantic keeps as field metadata (annotated_types and general metadata)."""
    checks: list[pa.Check] = []
    is_text = without_none(info.annotation) is str
    low, high = None, None
    for constraint in info.metadata:
        for attribute, make in _NUMBER_CHECKS.items():
            bound = getattr(constraint, attribute, None)
            if bound is not None:
                checks.append(make(bound))
        low = getattr(constraint, "min_length", None) if low is None else low
        high = getattr(constraint, "max_length", None) if high is None else high
        pattern = getattr(constraint, "pattern", None)
        if pattern is not None and is_text:
            checks.append(pa.Check.str_matches(str(getattr(pattern, "pattern", pattern))))
    if is_text and (low is not None or high is not None):
        checks.append(pa.Check.str_length(min_value=low, max_value=high))
    return checks


_NUMBER_CHECKS: dict[str, Callable[[Any], pa.Check]] = {
    "ge": pa.Check.ge,
    "gt": pa.Check.gt,
    "le": pa.Check.le,
    "lt": pa.Check.lt,
}


def _conforms(info: FieldInfo) -> Callable[[pd.Series], pd.Series]:
    """Whether each value of a column is one that the field's type takes; nulls are not asked about."""
    of_one, of_many = field_adapter(info), column_adapter(info)

    def conforms(column: pd.Series) -> pd.Series:
        kept = column[column.notna()]
        result = pd.Series(True, index=column.index)
        result.loc[kept.index[_wrong_places(kept.tolist(), of_one, of_many)]] = False
        return result

    return conforms


def _wrong_places(values: list[Any], of_one: TypeAdapter[Any], of_many: TypeAdapter[Any]) -> list[int]:
    """Which values pydantic refuses."""
    problem = _problem(of_many, values)
    if problem is None:
        return []
    if isinstance(problem, ValidationError):
        places = [one["loc"][:1] for one in problem.errors(include_url=False, include_input=False)]
        if all(places):
            return sorted({int(place[0]) for place in places})
    # An author's validator may raise anything, and the first to do so ends the call for all.
    return [place for place, value in enumerate(values) if _problem(of_one, value) is not None]


def _problem(adapter: TypeAdapter[Any], value: Any) -> Exception | None:
    try:
        # As JSON, because that is what the model was made for: enums and dates are texts there.
        adapter.validate_json(json.dumps(_jsonable(value)), by_alias=True, by_name=True)
    except _NotInJson:
        return _problem_in_python(adapter, value)
    except Exception as problem:
        return problem
    return None


def _problem_in_python(adapter: TypeAdapter[Any], value: Any) -> Exception | None:
    try:
        adapter.validate_python(value, strict=False, by_alias=True, by_name=True)
    except Exception as problem:
        return problem
    return None


class _NotInJson(ValueError):
    """Bytes: what text they were in the answer is for the model's own settings to say."""


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        raise _NotInJson
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)
