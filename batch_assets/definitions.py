"""The code location that `workspace.yaml` names: the definitions of all jobs, merged."""

from __future__ import annotations

import dagster as dg

from batch_assets.assets.code_location import code_location
from batch_assets.settings import Settings


@dg.definitions
def defs() -> dg.Definitions:
    """The packaged jobs and those of BATCH_ASSETS_JOBS."""
    return code_location(Settings())
