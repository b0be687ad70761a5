"""The files of a job folder: read, and turned into what they mean; errors name file and remedy."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from batch_assets.core.output_schema import SchemaSourceError, load_output_model
from batch_assets.core.prompt import PromptError, PromptTemplate, parse_prompt
from batch_assets.errors import SpecError
from batch_assets.storage.typed import UnsupportedType, arrow_fields

SPEC_FILE = "defs.yaml"


def read_file(folder: Path, name: str, key: str) -> str:
    """A file that the spec names under `key`."""
    path = folder / name
    if not path.is_file():
        raise SpecError(f"{folder / SPEC_FILE}: key {key!r}: found {name!r}, but there is no file {path}.")
    return read_text(path)


def read_text(path: Path) -> str:
    """A text file's content. Raises SpecError when it is not UTF-8 or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}).") from None


def to_template(text: str, path: Path) -> PromptTemplate:
    """The prompt that a file holds."""
    try:
        return parse_prompt(text)
    except PromptError as error:
        raise SpecError(f"{path} {error}.") from None


def to_model(source: str, path: Path) -> type[BaseModel]:
    """The output schema that a file holds; it can be stored in a table and asked of an engine."""
    try:
        model = load_output_model(source, where=str(path))
    except SchemaSourceError as error:
        raise SpecError(f"{error}.") from None
    try:
        arrow_fields(model)
        model.model_json_schema()
    except UnsupportedType as error:
        raise SpecError(f"{path}: {error}.") from None
    except Exception as error:  # pydantic raises several kinds for annotations without a JSON schema
        raise SpecError(f"{path}: the model has no JSON schema: {error}") from None
    return model
