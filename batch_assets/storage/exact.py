"""Decimals of an answer that its JSON number could not carry.

pydantic reads a JSON number with a fraction as a double, also for a Decimal field: of
12345678901234567.89 arrives 12345678901234568. A JSON string, or an integer, arrives exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from batch_assets.storage.typed import arrow_fields


@cache
def has_decimals(model: type[BaseModel]) -> bool:
    """Whether any column, or a part of one, is a decimal."""
    return any(_is_decimal(field.type) for field in arrow_fields(model))


def refuse_rounded(text: str, values: Iterable[Any]) -> None:
    """Raise ValueError when a decimal among the answer's values is not the number that its text has."""
    numbers: list[str] = []
    json.loads(text, parse_float=numbers.append)
    rounded = {Decimal(repr(float(number))): number for number in numbers}
    for value in _decimals(values):
        number = rounded.get(value)
        if number is not None and Decimal(number) != value:
            raise ValueError(f"{number} would be rounded to {value}; a long decimal must be a JSON string")


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind)) or any(_is_decimal(kind.field(at).type) for at in range(kind.num_fields))


def _decimals(value: Any) -> Iterator[Decimal]:
    if isinstance(value, Decimal):
        yield value
    elif isinstance(value, dict):
        yield from _decimals(value.values())
    elif not isinstance(value, str | bytes) and isinstance(value, Iterable):
        for one in value:
            yield from _decimals(one)
