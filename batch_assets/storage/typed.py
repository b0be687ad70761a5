"""Arrow types from the output schema: sealed files and tables are typed like the pydantic model."""

from __future__ import annotations

import datetime
import decimal
import types
import typing
import uuid
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel

from batch_assets.core.output_schema import without_none

_PLAIN: dict[Any, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us", tz="UTC"),
    datetime.time: pa.time64("us"),
    decimal.Decimal: pa.decimal128(38, 9),
    uuid.UUID: pa.string(),
}


class UnsupportedType(ValueError):
    """A field's annotation has no column type; the message names the field."""


@cache
def arrow_fields(model: type[BaseModel]) -> tuple[pa.Field, ...]:
    """One Arrow field per field of the model; asked for once per answer, so it is remembered.

    Raises UnsupportedType naming the field.
    """
    fields = []
    for name, info in model.model_fields.items():
        try:
            fields.append(pa.field(name, arrow_type(info.annotation)))
        except UnsupportedType as error:
            raise UnsupportedType(f"field {name!r}: {error}") from None
    return tuple(fields)


def arrow_type(annotation: Any) -> pa.DataType:
    """The column type of an annotation: plain types, enums, lists, nested models, optionals."""
    inner = without_none(annotation)
    origin = get_origin(inner)
    if origin is Annotated:
        return arrow_type(get_args(inner)[0])
    if inner in _PLAIN:
        return _PLAIN[inner]
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        if not inner.model_fields:
            raise UnsupportedType(f"{inner.__name__} has no fields, so there is nothing to store")
        return pa.struct(arrow_fields(inner))
    if origin is Literal or (isinstance(inner, type) and issubclass(inner, Enum)):
        values = get_args(inner) if origin is Literal else [member.value for member in inner]
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) == 1:
            return arrow_type(kinds.pop())
    if origin in (list, tuple, set, frozenset):
        items = [arg for arg in get_args(inner) if arg is not Ellipsis]
        if len(set(items)) == 1:
            return pa.list_(arrow_type(items[0]))
    if origin is dict and get_args(inner)[0] is str:
        return pa.map_(pa.string(), arrow_type(get_args(inner)[1]))
    if origin in (typing.Union, types.UnionType):
        raise UnsupportedType(f"{inner} mixes several types; give the column one type (or that type | None)")
    raise UnsupportedType(
        f"{inner} has no column type; use str, int, float, bool, dates, enums, lists or nested models"
    )


def to_arrow_value(value: Any) -> Any:
    """A model's value as pyarrow takes it: enums and sets become plain values, times are in UTC.

    Raises OverflowError for a time that UTC puts outside of the years 1 to 9999.
    """
    if isinstance(value, BaseModel):
        return {name: to_arrow_value(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # By ourselves: pandera, once imported, sets PYARROW_IGNORE_TIMEZONE, and Arrow then drops the offset.
        return value.astimezone(datetime.UTC)
    if isinstance(value, dict):
        return [(key, to_arrow_value(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [to_arrow_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(to_arrow_value(item) for item in value)
    return value
