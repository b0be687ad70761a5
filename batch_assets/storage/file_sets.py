"""What an incremental version is published as: base and changes, merged into files of their own.

The ledger names one manifest per version, and whoever writes first wins. The manifest, an immutable
object, names the files; it may name ten thousand, so it is no row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from batch_assets.errors import GateError, StoreError
from batch_assets.storage.database import Database
from batch_assets.storage.objects import Objects
from batch_assets.storage.publications import count_reopened
from batch_assets.storage.tables import file_sets, versions
from batch_assets.storage.upsert import insert_if_absent


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One immutable Parquet file."""

    key: str
    sha256: str
    bytes: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """A merged set as the ledger knows it."""

    job_version: str
    job: str
    content_sha256: str  # of the version's own content when it was merged
    manifest_key: str
    manifest_sha256: str
    rows: int
    dead_letters: int
    bytes: int  # of all its files


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a merged set: the rows that readers see, and the records that have no row."""

    job_version: str
    base_version: str
    results: Sequence[DataFile]
    dead_letters: Sequence[DataFile]

    def dump(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


class FileSets:
    """The merged sets of all incremental versions that were made ready to be published."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, job_version: str) -> FileSet | None:
        """The set that stands for this version, if it was merged."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(file_sets).where(file_sets.c.job_version == job_version)).first()
        if row is None:
            return None
        return FileSet(**{name: getattr(row, name) for name in FileSet.__dataclass_fields__})

    def record(self, merged: FileSet, *, reopened: int) -> FileSet:
        """Make a set the one that stands for its version; returns the one that does afterwards.

        The first set of a content stands. One that was merged from other content, before dead letters
        were put back, is replaced: it cannot have been published, since a published version is not reopened.
        `reopened` is how often the version's shards had been reopened when it was read; raises GateError
        when they were since.
        """
        with self._database.write("file_set") as connection:
            # Whoever puts dead letters back locks the same row, so that this set is not of a content that was.
            locked = sa.select(versions.c.job_version).where(versions.c.job_version == merged.job_version)
            connection.execute(locked.with_for_update()).first()
            if count_reopened(connection, merged.job_version) != reopened:
                raise GateError(
                    f"{merged.job_version} was changed while it was merged: dead letters were put back. Nothing was "
                    "published; check it again."
                )
            values = {**asdict(merged), "at": connection.scalar(sa.select(self._database.now()))}
            outdated = sa.delete(file_sets).where(
                file_sets.c.job_version == merged.job_version, file_sets.c.content_sha256 != merged.content_sha256
            )
            connection.execute(outdated)
            connection.execute(insert_if_absent(connection, file_sets), values)
        standing = self.of(merged.job_version)
        if standing is None:
            raise StoreError(f"The merged files of {merged.job_version} are not in the ledger; publish again.")
        return standing


def read_manifest(objects: Objects, merged: FileSet) -> Manifest:
    """The files of a set. Raises StoreError when the manifest is missing or not the one that was recorded."""
    data = objects.get(merged.manifest_key)
    if hashlib.sha256(data).hexdigest() != merged.manifest_sha256:
        raise StoreError(
            f"The object {merged.manifest_key} is not the one that was recorded for {merged.job_version}; restore it from "
            "a backup."
        )
    body = json.loads(data)
    return Manifest(
        job_version=body["job_version"],
        base_version=body["base_version"],
        results=[DataFile(**one) for one in body["results"]],
        dead_letters=[DataFile(**one) for one in body["dead_letters"]],
    )
