"""Dagster's own home: runs, events and its configuration, beside the ledger of the same deployment."""

from __future__ import annotations

import os
from pathlib import Path

from batch_assets.settings import Settings

CONFIG = """\
# Written once by batch-assets; change it freely.
telemetry:
  enabled: false
# No invitation to sign up for something when the UI is opened for the first time.
nux:
  enabled: false
run_monitoring:
  enabled: true
  start_timeout_seconds: 300
  # Runs on this machine cannot be taken up by another process; press Re-execute instead.
  max_resume_run_attempts: 0
  # A killed run would otherwise keep its place in a pool for ever.
  free_slots_after_run_end_seconds: 60
concurrency:
  pools:
    # A pool counts steps, not runs: worker steps are what needs a GPU each.
    granularity: op
"""

# One event names all planned partitions of a run. Without it, starting a run of 10,000 shards writes
# 10,000 rows first, and a second failure shows completed shards as failed.
PLANNED_AS_SUBSET = "DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS"


def dagster_home(settings: Settings) -> Path:
    """The folder for DAGSTER_HOME; made, with its dagster.yaml, if it is not there."""
    home = settings.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    config = home / "dagster.yaml"
    if not config.exists():
        draft = home / f".dagster.yaml.{os.getpid()}"
        draft.write_text(CONFIG)
        draft.replace(config)  # another process never reads half of it
    return home


def dagster_environment(settings: Settings) -> dict[str, str]:
    """This process's environment, with what each Dagster process of this deployment needs."""
    jobs = {"BATCH_ASSETS_JOBS": str(settings.jobs.expanduser().absolute())} if settings.jobs is not None else {}
    return {
        **os.environ,
        **jobs,
        "BATCH_ASSETS_HOME": str(settings.root),  # absolute: the same in every process
        "DAGSTER_HOME": str(dagster_home(settings)),
        PLANNED_AS_SUBSET: "1",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
