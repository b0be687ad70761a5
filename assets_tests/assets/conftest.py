"""A home with one job folder, and Dagster runs of it in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets_tests.factories import make_job, requests_served
from batch_assets.assets.job import job_definitions
from batch_assets.core.shards import partition_key
from batch_assets.operations import jobs as job_folders
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.pin import pin
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@dataclass
class Project:
    """One home, one directory of job folders, one Dagster instance in memory."""

    root: Path
    settings: Settings
    instance: dg.DagsterInstance
    deployment: Deployment = field(init=False)

    def __post_init__(self) -> None:
        self.deployment = Deployment(self.settings)

    def make_job(self, **keywords: Any) -> Path:
        return make_job(self.root / "jobs", **keywords)

    def pin(self, job: str = "tiny") -> RegisteredVersion:
        pinned = pin(self.deployment, self.deployment.job(job))
        return self.deployment.ledger.plans.get(pinned.job_version)

    def definitions(self, job: str = "tiny") -> dg.Definitions:
        return job_definitions(self.settings, self.deployment.job(job))

    def run(
        self,
        version: RegisteredVersion,
        shards: tuple[int, int] | None = None,
        checks: Set[dg.AssetCheckKey] = frozenset(),
        tags: Mapping[str, str] | None = None,
        run_id: str | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize a range of a version's shards in one run; with `checks`, planned as a backfill plans them."""
        first, last = shards or (0, version.shards - 1)
        key = dg.AssetKey([version.job, version.job_version])
        job = self.definitions(version.job).get_repository_def().get_job("__ASSET_JOB")
        return job.get_subset(asset_selection={key}, asset_check_selection=checks).execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            tags={RANGE_START: partition_key(first), RANGE_END: partition_key(last), **(tags or {})},
            run_id=run_id,
        )

    def run_job(self, name: str, *, job: str = "tiny", **keywords: Any) -> dg.ExecuteInProcessResult:
        definition = self.definitions(job).get_repository_def().get_job(name)
        return definition.execute_in_process(instance=self.instance, raise_on_error=False, **keywords)

    def materialized(self, version: RegisteredVersion) -> list[str]:
        """The partition of every materialization event there is, in order of the partitions."""
        key = dg.AssetKey([version.job, version.job_version])
        records = self.instance.fetch_materializations(key, limit=1000).records
        return sorted(record.partition_key or "(none)" for record in records)

    def stored_ids(self, version: RegisteredVersion) -> set[str]:
        """The records that have a stored result."""
        results_of = self.deployment.ledger.outcomes.results_of_shard
        return {one.record_id for shard in range(version.shards) for one in results_of(version.job_version, shard)}

    def served(self, job: str = "tiny") -> list[str]:
        return requests_served(self.root / "jobs" / job / "requests.jsonl")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    environment = {"HOME": "home", "JOBS": "jobs", "EXECUTOR": None}
    for name, folder in environment.items():
        monkeypatch.setenv(f"BATCH_ASSETS_{name}", str(tmp_path / folder) if folder else "in_process")
    (tmp_path / "jobs").mkdir()
    monkeypatch.setattr(job_folders, "PACKAGED", tmp_path / "no packaged jobs")
    with dg.DagsterInstance.ephemeral() as instance:
        project = Project(tmp_path, Settings(), instance)
        yield project
        project.deployment.ledger.close()


@pytest.fixture
def failure_text() -> Callable[[dg.ExecuteInProcessResult], str]:
    """What people read when a run has failed: the description of its first dg.Failure."""

    def text(result: dg.ExecuteInProcessResult) -> str:
        for event in result.get_step_failure_events():
            failure = event.step_failure_data.user_failure_data
            if failure is not None and failure.description:
                return str(failure.description)
        raise AssertionError("no step failed with a description")

    return text


def plain_metadata(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    return {name: value.value for name, value in metadata.items()}
