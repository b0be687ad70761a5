"""Dagster's view of the jobs. Assets name, partition, call and report; the work is done elsewhere.

    component.py                  a job folder as a Dagster component
    code_location.py, shown.py    all job folders; which versions are in the graph
    job.py                        all definitions of one job
    snapshot.py                   materializing it pins the folder as it is now
    job_version.py, gpu_step.py   one partitioned asset per version: plan → gpu_worker × N → settle
    checks.py                     the gate, as asset checks
    publication.py                `published`, and the jobs that move the pointer
    warehouse.py                  the resource by which other assets read what is published
    launch.py, requests.py, runs.py   Dagster runs started from the command line
    instance.py, executors.py     Dagster's own home; where steps run
    sealed_shards.py, verdict_events.py, version_page.py, published_page.py
                                  what people read in the UI

`BatchInferenceJob` is loaded on first use: the command line asks this package to start runs in
other processes, and should not wait for Dagster to print a version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batch_assets.assets.component import BatchInferenceJob

__all__ = ["BatchInferenceJob"]


def __getattr__(name: str) -> object:
    if name == "BatchInferenceJob":
        from batch_assets.assets.component import BatchInferenceJob

        return BatchInferenceJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
