"""Output schemas that hypothesis makes, each with answers that satisfy it and what a table must show of them."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Annotated, Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydantic import BaseModel, Field, NaiveDatetime, create_model

# Case matters to Python only, so no two of them differ in nothing else.
NAMES = ("a", "b_2", "größe", "名前", "date", "select", "order_by", "élan", "x" * 60)
_WIDE = Context(prec=40)
_LONG = st.integers(-(2**63), 2**63 - 1)
_OFFSETS = st.integers(-840, 840).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An annotation, values for it, and how a column shows each value."""

    annotation: Any
    values: SearchStrategy[Any]
    shown: Callable[[Any], Any] = lambda value: value
    is_sortable: bool = True  # may be the items of a set


@dataclass(frozen=True, kw_only=True)
class Example:
    """A model, answers as JSON texts, and the rows that its table must have."""

    model: type[BaseModel]
    answers: list[str]
    rows: list[dict[str, Any]]


@st.composite
def examples(draw: DrawFn) -> Example:
    """Models of up to five fields, nested up to three levels, with one to three answers."""
    kind = draw(_models(depth=2))
    values = draw(st.lists(kind.values, min_size=1, max_size=3))
    return Example(
        model=kind.annotation,
        answers=[value.model_dump_json(by_alias=True) for value in values],
        rows=[kind.shown(value) for value in values],
    )


def _plain() -> SearchStrategy[Kind]:
    return st.one_of(_texts(), _numbers(), _times(), _decimals(), _enums(), st.just(_BYTES), st.just(_UUID))


_BYTES = Kind(annotation=bytes, values=st.text(max_size=5).map(str.encode))
_UUID = Kind(annotation=uuid.UUID, values=st.uuids(), shown=str)
_DATE = Kind(annotation=datetime.date, values=st.dates())


@st.composite
def _texts(draw: DrawFn) -> Kind:
    low = draw(st.integers(0, 3))
    high = low + draw(st.integers(0, 10))
    annotation = Annotated[str, Field(min_length=low, max_length=high)]
    return Kind(annotation=annotation, values=st.text(min_size=low, max_size=high))


@st.composite
def _numbers(draw: DrawFn) -> Kind:
    low, high = sorted([draw(_LONG), draw(_LONG)])
    return draw(
        st.sampled_from(
            [
                Kind(annotation=Annotated[int, Field(ge=low, le=high)], values=st.integers(low, high)),
                Kind(annotation=bool, values=st.booleans()),
                Kind(annotation=float, values=st.floats(allow_nan=False, allow_infinity=False)),
            ]
        )
    )


def _times() -> SearchStrategy[Kind]:
    first, last = datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)  # also with an offset
    utc = datetime.UTC
    return st.sampled_from(
        [
            _DATE,
            Kind(annotation=NaiveDatetime, values=st.datetimes()),
            Kind(
                annotation=datetime.datetime,
                values=st.datetimes(first, last, timezones=st.none() | _OFFSETS),
                shown=lambda at: at.astimezone(utc) if at.tzinfo else at.replace(tzinfo=utc),
                is_sortable=False,
            ),
            Kind(
                annotation=datetime.time,
                values=st.times(timezones=st.none() | st.just(utc)),
                shown=lambda at: at.replace(tzinfo=None),
                is_sortable=False,
            ),
        ]
    )


@st.composite
def _decimals(draw: DrawFn) -> Kind:
    digits = draw(st.integers(1, 38))
    places = draw(st.integers(0, digits))
    few = min(digits, 19)
    return draw(
        st.sampled_from(
            [
                Kind(
                    annotation=Annotated[Decimal, Field(max_digits=digits, decimal_places=places)],
                    values=_scaled(digits, places),
                ),
                Kind(annotation=Annotated[Decimal, Field(decimal_places=places)], values=_scaled(38, places)),
                Kind(annotation=Annotated[Decimal, Field(max_digits=few)], values=_scaled(few, min(few, places))),
                Kind(annotation=Decimal, values=_scaled(38, 9) | st.just(Decimal("-0"))),
            ]
        )
    )


def _scaled(digits: int, places: int) -> SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-places, _WIDE))


@st.composite
def _enums(draw: DrawFn) -> Kind:
    texts = draw(st.lists(st.text(max_size=4), min_size=1, max_size=4, unique=True))
    numbers = draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3, unique=True))
    chosen: list[Any] = draw(st.sampled_from([texts, numbers]))
    if draw(st.booleans()):
        return Kind(annotation=Literal[tuple(chosen)], values=st.sampled_from(chosen))
    members = enum.Enum("Made", {f"M{at}": value for at, value in enumerate(chosen)})  # type: ignore[misc]
    return Kind(annotation=members, values=st.sampled_from(list(members)), shown=lambda member: member.value)


@st.composite
def _kinds(draw: DrawFn, depth: int) -> Kind:
    kind = draw(_plain() if depth == 0 or draw(st.booleans()) else _composites(depth))
    return _optional(kind) if draw(st.booleans()) else kind


def _optional(kind: Kind) -> Kind:
    return Kind(
        annotation=kind.annotation | None,
        values=st.none() | kind.values,
        shown=lambda value: None if value is None else kind.shown(value),
        is_sortable=False,
    )


@st.composite
def _composites(draw: DrawFn, depth: int) -> Kind:
    made = draw(st.sampled_from(["list", "tuple", "set", "dict", "model"]))
    if made == "model":
        return draw(_models(depth=depth - 1))
    if made == "dict":
        key = draw(st.sampled_from([_DATE, _UUID]) | _texts())
        item = draw(_kinds(depth=depth - 1))
        return Kind(
            annotation=dict[key.annotation, item.annotation],  # type: ignore[name-defined]
            values=st.dictionaries(key.values, item.values, max_size=3),
            shown=lambda value: {key.shown(one): item.shown(two) for one, two in value.items()},
            is_sortable=False,
        )
    item = draw(_kinds(depth=depth - 1))
    if made == "set" and item.is_sortable:
        return Kind(
            annotation=set[item.annotation],  # type: ignore[name-defined]
            values=st.sets(item.values, max_size=3),
            shown=lambda value: sorted(map(item.shown, value)),
            is_sortable=False,
        )
    low = draw(st.integers(0, 1))
    longer = Annotated[list[item.annotation], Field(min_length=low, max_length=3)]  # type: ignore[name-defined]
    return Kind(
        annotation=longer if made != "tuple" else tuple[item.annotation, ...],  # type: ignore[name-defined]
        values=st.lists(item.values, min_size=low, max_size=3).map(list if made != "tuple" else tuple),
        shown=lambda value: [item.shown(one) for one in value],
        is_sortable=False,
    )


@st.composite
def _models(draw: DrawFn, depth: int) -> Kind:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    kinds = {name: draw(_kinds(depth=depth)) for name in names}
    aliases = draw(st.lists(st.text(min_size=1), min_size=len(names), max_size=len(names), unique=True))
    is_aliased = draw(st.booleans())
    fields: dict[str, Any] = {
        name: (kind.annotation, Field(alias=f"{alias}." if is_aliased else None))
        for (name, kind), alias in zip(kinds.items(), aliases, strict=True)
    }
    model = create_model("Made", **fields)
    return Kind(
        annotation=model,
        values=st.fixed_dictionaries({name: kind.values for name, kind in kinds.items()}).map(
            lambda values: model.model_validate(values, by_name=True, by_alias=False)
        ),
        shown=lambda value: {name: kind.shown(getattr(value, name)) for name, kind in kinds.items()},
        is_sortable=False,
    )
