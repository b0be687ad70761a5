"""Where the steps of a run execute; the assets are the same under each executor."""

from __future__ import annotations

import dagster as dg

from batch_assets.settings import Settings

# Only worker steps run side by side, and the spec says how many; the executor's default of one per
# core would leave GPUs idle on a machine with more of them than cores to spare.
CONCURRENT_STEPS_MAX = 256


def executor_for(settings: Settings) -> dg.ExecutorDefinition:
    """In this process (one worker, no start-up cost), or a process per step."""
    if settings.executor == "in_process":
        return dg.in_process_executor
    return dg.multiprocess_executor.configured({"max_concurrent": CONCURRENT_STEPS_MAX})
