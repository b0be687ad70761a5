"""Version files: `versions/<job>/<id>.json`, written once, never edited."""

from __future__ import annotations

from batch_assets.core.version import JobVersion, dump_version, load_version
from batch_assets.errors import StoreError, VersionError
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.objects import Objects
from batch_assets.storage.plans import RegisteredVersion, file_sha256


class VersionFiles:
    """Reads and writes version files, and proves on each read that they are what was pinned."""

    def __init__(self, objects: Objects, ledger: Ledger) -> None:
        self._objects = objects
        self._ledger = ledger

    @staticmethod
    def key(job: str, job_version: str) -> str:
        return f"versions/{job}/{job_version}.json"

    def write(self, version: JobVersion) -> JobVersion:
        """Write a new version file and register it; returns the version that stands afterwards.

        When another pin of the same identity came first, its file stands: the shard size and the
        file locations of the first pin hold for the life of the version.
        """
        key = self.key(version.job, version.id)
        data = dump_version(version)
        if not self._objects.put_if_absent(key, data):
            data = self._objects.get(key)
            version = load_version(data, expected_id=version.id, where=self._objects.uri(key))
        self._ledger.plans.register(version, file_sha256=file_sha256(data))
        self._refuse_swept(version)
        return version

    def _refuse_swept(self, version: JobVersion) -> None:
        """Until a version is registered, `sweep` may take its snapshot files for ones that nothing names."""
        for pin in version.snapshot.files:
            if not pin.key.startswith("/") and not self._objects.exists(pin.key):
                raise StoreError(
                    f"The snapshot file {pin.key} of {version.id} is missing from {self._objects.address}. Nothing is lost; pin "
                    "the job again, and it is made anew."
                )

    def read(self, registered: RegisteredVersion) -> JobVersion:
        """Load a version. Raises VersionError when its file is missing or was edited."""
        key = self.key(registered.job, registered.job_version)
        where = self._objects.uri(key)
        try:
            data = self._objects.get(key)
        except StoreError as error:
            raise VersionError(
                f"The version file {where} is missing. Restore it from a backup; it cannot be made again from the job folder."
            ) from error
        version = load_version(data, expected_id=registered.job_version, where=where)
        if file_sha256(data) != registered.file_sha256:
            raise VersionError(
                f"{where} differs from the file that was pinned as {registered.job_version}. Version files are never "
                "edited: change the job folder and pin again to get a new version, and restore this file."
            )
        return version
