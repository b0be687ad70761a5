"""Dagster runs in this process, as the UI would launch them: same jobs, same tags, same origin.

The only module, with `shown.py`, that uses Dagster's internals: a run started here names the code
location that `workspace.yaml` loads, so that its page in the UI offers Re-execute. pyproject pins
Dagster's minor version for it.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.definitions.metadata.metadata_value import CodeLocationReconstructionMetadataValue
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.definitions.repository_definition import RepositoryLoadData
from dagster._core.execution.api import create_execution_plan, execute_run
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.snap import snapshot_from_execution_plan
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._utils.interrupts import capture_interrupts

from batch_assets.assets.shown import METADATA_KEY, encode_choice
from batch_assets.worker.identity import is_dead_local_owner, owner_name

MODULE, ATTRIBUTE = "batch_assets.definitions", "defs"
LOCATION = "batch_assets"  # as in workspace.yaml
REPOSITORY = "__repository__"  # Dagster's name for a code location's only repository
ASSET_JOB = "__ASSET_JOB"  # Dagster's job for whatever assets are selected
# RUN_ID@PROCESS: which process drives the run. Its prefix keeps it out of the UI's lists.
LAUNCHER_TAG = ".dagster/batch_assets_launcher"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to run."""

    assets: Sequence[dg.AssetKey] = ()
    checks: Sequence[dg.AssetCheckKey] = ()
    job: str = ASSET_JOB
    tags: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # per job, which must be in the graph


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    run_id: str
    success: bool
    problem: str | None  # one paragraph; None after a success


class RunLauncher:
    """Executes one run here; `stop` may come from another thread or a signal handler."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._run: dg.DagsterRun | None = None
        self._stopped = threading.Event()

    def execute(self, request: RunRequest) -> RunOutcome:
        """Run to the end. Returns the first failure in the words of whoever raised it."""
        with capture_interrupts():  # SIGTERM, too, is answered by Dagster from here on
            end_forgotten_runs(self._instance)
            job = _reconstructable(request)
            run = self._run = _create_run(self._instance, job, request)
            if self._stopped.is_set():
                self.stop()
            result = execute_run(job, run, self._instance, raise_on_error=False)
        problem = None if result.success else _problem(self._instance, run.run_id)
        return RunOutcome(run_id=run.run_id, success=result.success, problem=problem)

    def stop(self) -> None:
        """End the run as a cancellation: workers drain, and the run does not count as failed."""
        self._stopped.set()
        if self._run is not None:
            self._instance.report_run_canceling(self._run)
            os.kill(os.getpid(), signal.SIGTERM)


def end_forgotten_runs(instance: dg.DagsterInstance) -> None:
    """Close runs whose process on this machine was killed; nobody else would, and they look alive."""
    active = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING]
    for run in instance.get_runs(dg.RunsFilter(statuses=active)):
        if is_from_command_line(run) and is_dead_local_owner(run.tags[LAUNCHER_TAG].partition("@")[2]):
            instance.report_run_failed(run, "The process that drove this run was killed. Press Re-execute to go on.")


def is_from_command_line(run: dg.DagsterRun) -> bool:
    """Whether this very run was started here; a re-execution in the UI inherits the tags of the run before."""
    return run.tags.get(LAUNCHER_TAG, "").startswith(f"{run.run_id}@")


def _reconstructable(request: RunRequest) -> ReconstructableJob:
    choice = CodeLocationReconstructionMetadataValue(encode_choice(request.versions))
    repository = ReconstructableRepository.for_module(MODULE, ATTRIBUTE).with_repository_load_data(
        RepositoryLoadData(reconstruction_metadata={METADATA_KEY: choice}, code_location_name=LOCATION)
    )
    job = repository.get_reconstructable_job(request.job)
    if request.job != ASSET_JOB:
        return job
    return job.get_subset(asset_selection=frozenset(request.assets), asset_check_selection=frozenset(request.checks))


def _create_run(instance: dg.DagsterInstance, job: ReconstructableJob, request: RunRequest) -> dg.DagsterRun:
    definition, run_id = job.get_definition(), str(uuid.uuid4())
    tags = {
        **request.tags,
        LAUNCHER_TAG: f"{run_id}@{owner_name()}",
        ".dagster/repository": f"{REPOSITORY}@{LOCATION}",  # lists the run under its code location
    }
    plan = create_execution_plan(
        job,
        run_config=request.config,
        instance_ref=instance.get_ref(),
        tags=tags,
        repository_load_data=job.repository.repository_load_data,
    )
    return instance.create_run(
        job_name=definition.name,
        run_id=run_id,
        run_config=request.config,
        status=None,
        tags=tags,
        root_run_id=None,
        parent_run_id=None,
        step_keys_to_execute=plan.step_keys_to_execute,
        execution_plan_snapshot=snapshot_from_execution_plan(plan, definition.get_job_snapshot_id()),
        job_snapshot=definition.get_job_snapshot(),
        parent_job_snapshot=definition.get_parent_job_snapshot(),
        asset_selection=job.asset_selection,
        asset_check_selection=job.asset_check_selection,
        resolved_op_selection=None,
        op_selection=None,
        remote_job_origin=_origin(definition.name),
        job_code_origin=job.get_python_origin(),
        asset_graph=definition.asset_layer.asset_graph,
    )


def _origin(job: str) -> RemoteJobOrigin:
    location = ManagedGrpcPythonEnvCodeLocationOrigin(
        loadable_target_origin=LoadableTargetOrigin(module_name=MODULE), location_name=LOCATION
    )
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, REPOSITORY), job)


def _problem(instance: dg.DagsterInstance, run_id: str) -> str:
    """The first failed step's own words, or what Dagster says of the run."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        data = entry.dagster_event.step_failure_data if entry.dagster_event is not None else None
        if data is None:
            continue
        if data.user_failure_data is not None and data.user_failure_data.description:
            return data.user_failure_data.description
        if data.error is not None:
            return " ".join((data.error.cause or data.error).message.split())
    run = instance.get_run_by_id(run_id)
    return f"The run {run_id} ended as {run.status.value.lower() if run is not None else 'unknown'}; see it in the UI."
