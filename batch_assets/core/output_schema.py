"""The output schema: one pydantic model, loaded from its source, used for everything.

It constrains decoding (as JSON schema), validates every answer, and types the sealed files and the
tables. The source comes from the version file, not from the job folder, so that a version keeps
its schema when the folder has moved on.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import types
import typing
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

CLASS_NAME = "Output"


class SchemaSourceError(ValueError):
    """The schema file cannot be used; the message says why."""


def load_output_model(source: str, *, where: str) -> type[BaseModel]:
    """Execute a schema file and return its model.

    The model is the class named `Output`, or the only pydantic model that the file defines. This
    runs the author's Python, as loading any Dagster code location does.
    """
    name = f"batch_assets_schema_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    module = types.ModuleType(name)
    module.__file__ = where
    sys.modules[name] = module  # pydantic resolves annotations through it
    try:
        # What the file prints must not get into output that a program reads.
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(source, where, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise SchemaSourceError(f"{where} does not load: {problem}") from error
    models = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == name
    }
    model = models.get(CLASS_NAME) or (next(iter(models.values())) if len(models) == 1 else None)
    if model is None:
        found = ", ".join(models) or "none"
        raise SchemaSourceError(f"{where} must define one pydantic model named {CLASS_NAME}; found: {found}")
    reserved = [field for field in model.model_fields if field.startswith("_")]
    if not model.model_fields or reserved:
        raise SchemaSourceError(f"{where}: {model.__name__} needs at least one field, and none starting with '_'")
    return model


def enum_fields(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Top-level fields with a closed set of string values, and those values."""
    found = {name: enum_values(info.annotation) for name, info in model.model_fields.items()}
    return {name: values for name, values in found.items() if values}


def enum_values(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal or Enum of strings (or an optional one); empty for anything else."""
    inner = without_none(annotation)
    if get_origin(inner) is Literal:
        values = get_args(inner)
    elif isinstance(inner, type) and issubclass(inner, Enum):
        values = tuple(member.value for member in inner)
    else:
        return ()
    return tuple(values) if all(isinstance(value, str) for value in values) else ()


def field_adapter(info: FieldInfo) -> TypeAdapter[Any]:
    """Validates one field's value by itself. Its bounds are beside the annotation, not in it."""
    return TypeAdapter(_bounded(info))


def column_adapter(info: FieldInfo) -> TypeAdapter[Any]:
    """Validates many values of one field in one call, which is a hundred times faster than one by one."""
    values: Any = list[_bounded(info)]  # type: ignore[misc]
    return TypeAdapter(values)


def _bounded(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def plain(value: Any) -> Any:
    """A value as it stands in a table: an enum's value instead of its member."""
    return value.value if isinstance(value, Enum) else value


def without_none(annotation: Any) -> Any:
    """`X` for `X | None` and `Optional[X]`; anything else unchanged."""
    if get_origin(annotation) in (typing.Union, types.UnionType):
        kept = [arg for arg in get_args(annotation) if arg is not type(None)]
        return kept[0] if len(kept) == 1 else annotation
    return annotation


def is_optional(info: FieldInfo) -> bool:
    """Whether the field's value may be None."""
    return get_origin(info.annotation) in (typing.Union, types.UnionType) and type(None) in get_args(info.annotation)
