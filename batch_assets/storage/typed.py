"""Arrow types from the output schema: sealed files and tables are typed like the pydantic model.

    str, UUID, URL          string
    enum or Literal of str  dictionary<int32, string>
    int, bool, float        int64, bool, double
    Decimal                 decimal128 by max_digits and decimal_places; (38, 9) when neither is given
    date, time              date32, time64[us]; a time of day has no offset, or that of UTC
    datetime                timestamp[us, UTC], one without an offset is taken as UTC
    NaiveDatetime           timestamp[us]
    bytes                   binary
    list, set, tuple        list; sets in order
    dict                    map
    nested model            struct

What a column cannot hold exactly is refused: a type before anything is computed, a value when its
answer arrives. Nothing is rounded, cut or shifted.
"""

from __future__ import annotations

import datetime
import decimal
import types
import typing
import uuid
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import pyarrow as pa
from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    EmailStr,
    FutureDate,
    FutureDatetime,
    NaiveDatetime,
    PastDate,
    PastDatetime,
    RootModel,
)

DECIMAL_DIGITS_MAX = 38  # of decimal128 and of DuckDB's DECIMAL
_DECIMAL_PLACES = 9  # for a Decimal that says nothing: 29 digits before the point

_MOMENT = pa.timestamp("us", tz="UTC")
_ENUM = pa.dictionary(pa.int32(), pa.string())
_PLAIN: dict[Any, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    PastDate: pa.date32(),
    FutureDate: pa.date32(),
    datetime.datetime: _MOMENT,
    AwareDatetime: _MOMENT,
    PastDatetime: _MOMENT,
    FutureDatetime: _MOMENT,
    NaiveDatetime: pa.timestamp("us"),
    datetime.time: pa.time64("us"),
    uuid.UUID: pa.string(),
    EmailStr: pa.string(),
}


class UnsupportedType(ValueError):
    """A field's annotation has no column type; the message names the field."""


@cache
def arrow_fields(model: type[BaseModel]) -> tuple[pa.Field, ...]:
    """One Arrow field per field of the model; asked for once per answer, so it is remembered.

    Raises UnsupportedType naming the field.
    """
    return _fields(model, ())


def arrow_type(annotation: Any) -> pa.DataType:
    """The column type of an annotation. Raises UnsupportedType."""
    return _type(annotation, (), ())


def to_arrow_row(answer: BaseModel) -> dict[str, Any]:
    """Column → value of a whole answer. Raises as `to_arrow_value`."""
    return {name: to_arrow_value(getattr(answer, name)) for name in type(answer).model_fields}


def to_arrow_value(value: Any) -> Any:
    """A model's value as pyarrow takes it: enums and sets become plain values, times are in UTC.

    Raises OverflowError for a time that UTC puts outside of the years 1 to 9999, ValueError for a time of
    day with another offset.
    """
    if isinstance(value, RootModel):
        return to_arrow_value(value.root)
    if isinstance(value, BaseModel):
        return to_arrow_row(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, uuid.UUID | AnyUrl):
        return str(value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # By ourselves: pandera, once imported, sets PYARROW_IGNORE_TIMEZONE, and Arrow then drops the offset.
        return value.astimezone(datetime.UTC)
    if isinstance(value, datetime.time) and value.tzinfo is not None:
        if value.utcoffset():
            raise ValueError(f"{value} has an offset, which a time of day has no column for; use a datetime")
        return value.replace(tzinfo=None)
    if isinstance(value, dict):
        return [(to_arrow_value(key), to_arrow_value(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [to_arrow_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return _in_order([to_arrow_value(item) for item in value])
    return value


def _fields(model: type[BaseModel], inside: tuple[type, ...]) -> tuple[pa.Field, ...]:
    if model in inside:
        raise UnsupportedType(f"{model.__name__} contains itself, so its column would have no end")
    fields: dict[str, pa.Field] = {}
    for name, info in model.model_fields.items():
        try:
            fields[name] = pa.field(name, _type(info.annotation, info.metadata, (*inside, model)))
        except UnsupportedType as error:
            raise UnsupportedType(f"field {name!r}: {error}") from None
    lowered = [name.lower() for name in fields]
    doubled = [name for name in fields if lowered.count(name.lower()) > 1]
    if doubled:
        raise UnsupportedType(
            f"the fields {' and '.join(map(repr, doubled))} of {model.__name__} differ only in upper and lower case, "
            "which SQL does not tell apart; rename one"
        )
    return tuple(fields.values())


def _type(annotation: Any, metadata: Sequence[Any], inside: tuple[type, ...]) -> pa.DataType:
    """`metadata` is what stands beside the annotation, `inside` the models that the field is part of."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], [*metadata, *arguments[1:]], inside)
    if hasattr(annotation, "__value__"):  # `type X = …`
        return _type(annotation.__value__, metadata, inside)
    if isinstance(annotation, typing.NewType):
        return _type(annotation.__supertype__, metadata, inside)
    if origin in (typing.Union, types.UnionType):
        return _union(annotation, metadata, inside)
    if origin is Literal:
        return _enum(annotation, [getattr(value, "value", value) for value in arguments])
    if origin in (list, tuple, set, frozenset):
        items = {_type(argument, (), inside) for argument in arguments if argument is not Ellipsis}
        if len(items) == 1:
            return pa.list_(items.pop())
    if origin is dict and len(arguments) == 2:
        return pa.map_(_type(arguments[0], (), inside), _type(arguments[1], (), inside))
    if isinstance(annotation, type) and origin is None:
        return _class(annotation, metadata, inside)
    raise _no_type(annotation)


def _class(kind: type, metadata: Sequence[Any], inside: tuple[type, ...]) -> pa.DataType:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if issubclass(kind, decimal.Decimal):
        return _decimal(metadata)
    if issubclass(kind, AnyUrl):
        return pa.string()
    if issubclass(kind, Enum):
        return _enum(kind, [member.value for member in kind])
    if issubclass(kind, RootModel):
        if kind in inside:
            raise UnsupportedType(f"{kind.__name__} contains itself, so its column would have no end")
        root = kind.model_fields["root"]
        return _type(root.annotation, root.metadata, (*inside, kind))
    if issubclass(kind, BaseModel):
        if not kind.model_fields:
            raise UnsupportedType(f"{kind.__name__} has no fields, so there is nothing to store")
        return pa.struct(_fields(kind, inside))
    raise _no_type(kind)


def _union(annotation: Any, metadata: Sequence[Any], inside: tuple[type, ...]) -> pa.DataType:
    kinds = {_type(one, metadata, inside) for one in get_args(annotation) if one is not type(None)}
    if len(kinds) != 1:
        raise UnsupportedType(f"{annotation} mixes several types; give the column one type (or that type | None)")
    return kinds.pop()


def _enum(annotation: Any, values: Sequence[Any]) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1 or (kind := kinds.pop()) not in _PLAIN:
        raise UnsupportedType(f"{annotation} needs values of one plain type, such as str")
    return _ENUM if kind is str else _PLAIN[kind]


def _decimal(metadata: Sequence[Any]) -> pa.DataType:
    """The narrowest column for what pydantic lets through.

    `max_digits` counts the places too, so without `decimal_places` a value has up to that many digits on
    either side of the point.
    """
    digits, places = None, None
    for constraint in _flat(metadata):
        digits = getattr(constraint, "max_digits", None) or digits
        found = getattr(constraint, "decimal_places", None)
        places = places if found is None else found
    if digits is None:
        digits, places = DECIMAL_DIGITS_MAX, _DECIMAL_PLACES if places is None else places
    elif places is None:
        digits, places = 2 * digits, digits
    if max(digits, places) > DECIMAL_DIGITS_MAX:
        raise UnsupportedType(
            f"its values may have {max(digits, places)} digits, and a decimal column holds {DECIMAL_DIGITS_MAX} before and "
            "after the point together; give max_digits and decimal_places that fit, or use str"
        )
    return pa.decimal128(digits, min(digits, places))


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    """Constraints, also those of a `Field(...)` inside of `Annotated`."""
    for one in metadata:
        yield one
        yield from getattr(one, "metadata", None) or ()


def _in_order(values: list[Any]) -> list[Any]:
    """A set's values in an order that every process gives them."""
    try:
        return sorted(values)
    except TypeError:  # None among them, or nested models
        return sorted(values, key=repr)


def _no_type(annotation: Any) -> UnsupportedType:
    return UnsupportedType(
        f"{annotation} has no column type; use str, int, float, bool, Decimal, dates, enums, lists or nested models"
    )
