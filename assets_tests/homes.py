"""A deployment in a temporary folder, and the path of a job through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import SecretStr

from batch_assets.core.outcomes import DeadLetter
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.pin import pin
from batch_assets.operations.plan import plan
from batch_assets.operations.status import status
from batch_assets.operations.work import work
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.worker.report import WorkerReport


@dataclass(frozen=True)
class Home:
    """A home whose jobs are the folders in `jobs`."""

    deployment: Deployment
    jobs: Path

    def pinned(self, job: str = "tiny") -> RegisteredVersion:
        """Pin and plan the job as its folder is now."""
        pinned = pin(self.deployment, self.deployment.job(job))
        plan(self.deployment, self.deployment.ledger.plans.get(pinned.job_version))
        return self.deployment.ledger.plans.get(pinned.job_version)

    def worked(self, job: str = "tiny", **options: Any) -> tuple[RegisteredVersion, WorkerReport]:
        """Pin, plan and work through all shards."""
        registered = self.pinned(job)
        return registered, work(self.deployment, registered, **options)

    def status(self, registered: RegisteredVersion) -> dict[str, Any]:
        return status(self.deployment, registered)

    def dead_letters(self, registered: RegisteredVersion) -> list[DeadLetter]:
        return list(self.deployment.ledger.outcomes.dead_letters(registered.job_version))

    def sealed_rows(self, registered: RegisteredVersion) -> list[dict[str, Any]]:
        """All rows of all sealed files, in shard order."""
        keys = [
            row.sealed_key for row in self.deployment.ledger.progress.shards(registered.job_version, state="completed")
        ]
        return [row for key in keys for row in pq.read_table(self.deployment.objects.path(str(key))).to_pylist()]


@contextmanager
def temporary_home(folder: Path, *, ledger: str | None = None) -> Iterator[Home]:
    """A home in `folder`; its ledger (a SQLite file there, unless an address is given) is closed at the end."""
    jobs = folder / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    address = None if ledger is None else SecretStr(ledger)
    deployment = Deployment(Settings(home=folder / "home", ledger=address, jobs=jobs, models=folder / "models"))
    try:
        yield Home(deployment, jobs)
    finally:
        deployment.ledger.close()
