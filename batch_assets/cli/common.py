"""What all commands share."""

from __future__ import annotations

import difflib
import os
from typing import Annotated

import typer
from pydantic import ValidationError

from batch_assets.cli import render
from batch_assets.engine.orphan_guard import STARTER_VARIABLE
from batch_assets.errors import InputError
from batch_assets.failpoints import VARIABLE
from batch_assets.operations.deployment import Deployment
from batch_assets.settings import Settings

JsonFlag = Annotated[bool, typer.Option("--json", help="machine-readable output with stable keys")]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="a version, or a job for its newest one")]


def _warn_of_unknown_variables() -> None:
    """A misspelled variable would be ignored without a word, and two workers would use two ledgers."""
    known = {f"BATCH_ASSETS_{name.upper()}" for name in Settings.model_fields} | {VARIABLE, STARTER_VARIABLE}
    for name in sorted(set(os.environ) - known):
        if name.startswith("BATCH_ASSETS_"):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            render.warn(f"{name} is set, and nothing here knows it{hint}")


def deployment() -> Deployment:
    """The home that BATCH_ASSETS_HOME names.

    Raises InputError when a BATCH_ASSETS_ variable has a value that does not fit, or the home cannot be used.
    """
    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "BATCH_ASSETS_" + "_".join(str(part).upper() for part in first["loc"])
        raise InputError(f"{name}: {first['msg']} (found {first.get('input')!r}).") from None
    _warn_of_unknown_variables()
    try:
        settings.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The state cannot be kept in {settings.root} ({error.strerror}). Set BATCH_ASSETS_HOME to a folder "
            "that can be written."
        ) from None
    return Deployment(settings)
