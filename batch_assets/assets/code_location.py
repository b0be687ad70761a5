"""Loading every job folder, packaged or not, in one way."""

from __future__ import annotations

import warnings

import dagster as dg

from batch_assets.assets.executors import executor_for
from batch_assets.assets.job import job_definitions
from batch_assets.assets.opened import opened
from batch_assets.assets.shown import METADATA_KEY, encode_choice, is_reconstruction, shown_versions
from batch_assets.assets.warehouse import published_warehouse
from batch_assets.errors import SpecError
from batch_assets.operations.jobs import Job, find_job_folders, load_job, load_jobs
from batch_assets.settings import Settings


def code_location(settings: Settings) -> dg.Definitions:
    """The definitions of all jobs.

    Raises SpecError for a job folder that is not valid. A run that is under way goes on without
    that folder: an edit to one job must not end the runs of the others.
    """
    jobs = _valid_jobs(settings) if is_reconstruction() else load_jobs(settings)
    definitions = [job_definitions(settings, job) for job in jobs.values()]
    with opened(settings) as deployment:
        choice = {name: [one.job_version for one in shown_versions(deployment.ledger, name)] for name in jobs}
    shared = dg.Definitions(executor=executor_for(settings), resources={"warehouse": published_warehouse(settings)})
    merged = dg.Definitions.merge(*definitions, shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # why it is worth it: shown.py
        return merged.with_reconstruction_metadata({METADATA_KEY: encode_choice(choice)})


def _valid_jobs(settings: Settings) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for folder in find_job_folders(settings):
        try:
            job = load_job(folder)
        except SpecError:
            continue
        jobs.setdefault(job.name, job)
    return jobs
