"""A spec error as one paragraph: which key, what was found, what is valid."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """All problems of a spec in one text; each names its key as the author wrote it."""
    return " ".join(_describe_one(detail, model) for detail in error.errors(include_url=False))


def _describe_one(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    location = [part for part in detail["loc"] if not _is_union_branch(part)]
    key = ".".join(map(str, location)) or "the spec"
    found = _short(detail.get("input"))
    if detail["type"] == "extra_forbidden":
        valid = _keys_at(model, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"Unknown key {key!r} (found {found}): {hint}Valid keys here are {', '.join(valid)}."
    if detail["type"] == "missing":
        return f"Key {key!r} is missing; it is required."
    message = _IN_YAML_WORDS.sub("a section of keys", str(detail["msg"]).removeprefix("Value error, "))
    message = message.replace("a valid tuple", "a list")
    return f"Key {key!r}: {message} (found {found})."


_IN_YAML_WORDS = re.compile(r"a valid dictionary or instance of \w+")


def _is_union_branch(part: object) -> bool:
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "float", "bool", "none"})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _keys_at(model: type[BaseModel], location: Sequence[object]) -> list[str]:
    """The valid keys of the section at a location."""
    current = model
    for part in location:
        info = current.model_fields.get(str(part))
        inner = _model_in(info.annotation) if info is not None else None
        if inner is None:
            return []
        current = inner
    return list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (typing.Union, types.UnionType, tuple):
        return next((found for found in map(_model_in, get_args(annotation)) if found is not None), None)
    return None
