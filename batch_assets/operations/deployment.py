"""One place that knows where everything is: the ledger, the objects and the settings of this home."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from batch_assets.core.judges import is_judge
from batch_assets.core.version import JobVersion
from batch_assets.errors import VersionError
from batch_assets.operations.jobs import Job, find_job, job_names
from batch_assets.settings import Settings
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.objects import Objects
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.snapshots import SnapshotReader
from batch_assets.storage.stores import open_objects
from batch_assets.storage.versions import VersionFiles


@dataclass(frozen=True)
class Deployment:
    """A home with its ledger and objects; opened on first use, cheap to make."""

    settings: Settings

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.settings.ledger_url)

    @cached_property
    def objects(self) -> Objects:
        return open_objects(self.settings.objects_address, self.settings.root)

    @cached_property
    def version_files(self) -> VersionFiles:
        return VersionFiles(self.objects, self.ledger)

    def job(self, name: str) -> Job:
        """The job folder as it is now."""
        return find_job(self.settings, name)

    def known_job(self, name: str) -> str:
        """A job that has versions here or a folder; its name is enough to look and to roll back.

        Raises SpecError, with the jobs there are, for any other name.
        """
        if not self.ledger.plans.list(name):
            self.job(name)
        return name

    def resolve(self, version_or_job: str | None) -> RegisteredVersion:
        """A version by its id, or the newest version of a job; without a name, the newest of all.

        A judge's version is found by its id alone.
        Raises VersionError when there is none.
        """
        registered = self.ledger.plans.list()
        known = [one for one in registered if not is_judge(one.job) or one.job_version == version_or_job]
        found = [one for one in known if version_or_job is None or version_or_job in (one.job_version, one.job)]
        if found:
            return found[0]
        if version_or_job is None:
            raise VersionError("No job version is pinned here yet; `batch-assets pin JOB` makes one.")
        if version_or_job in job_names(self.settings):
            raise VersionError(
                f"The job {version_or_job!r} has no version yet; run `batch-assets pin {version_or_job}` first."
            )
        names = ", ".join(one.job_version for one in known[:5]) or "none yet"
        raise VersionError(f"{version_or_job!r} is neither a job nor a job version. Versions here: {names}.")

    def version(self, registered: RegisteredVersion) -> JobVersion:
        """The pinned content of a registered version."""
        return self.version_files.read(registered)

    def reader(self, version: JobVersion) -> SnapshotReader:
        """The version's records, wherever their files are now."""
        moved = self.ledger.plans.get(version.id).moved_files
        return SnapshotReader(version.snapshot, self.objects, moved)
