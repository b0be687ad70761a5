"""What all commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from batch_assets.operations.deployment import Deployment
from batch_assets.settings import Settings

JsonFlag = Annotated[bool, typer.Option("--json", help="machine-readable output with stable keys")]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="a version, or a job for its newest one")]


def deployment() -> Deployment:
    """The home that BATCH_ASSETS_HOME names."""
    return Deployment(Settings())
