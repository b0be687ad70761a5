"""Registered versions and their shard tables.

A version is planned once: shards and the dead letters known in advance (over the input cap, empty
input) are written in one transaction, so that a version is either not planned or planned whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import sqlalchemy as sa

from batch_assets.core.outcomes import Failure
from batch_assets.core.shards import shard_of_row, shard_range
from batch_assets.core.version import JobVersion
from batch_assets.errors import StoreError, VersionError
from batch_assets.storage.database import Database
from batch_assets.storage.partitions import attach_partitions
from batch_assets.storage.record_keys import key_columns, storable
from batch_assets.storage.tables import outcomes, shards, versions
from batch_assets.storage.upsert import insert_if_absent

_BATCH = 2000  # rows per statement: few round trips, bounded memory


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """A version as the ledger knows it."""

    job_version: str
    job: str
    label: str
    records: int
    shards: int
    pinned_at: float
    planned: bool
    cancelled: bool
    retired: bool
    file_sha256: str
    base_version: str | None = None  # of an incremental version: what it holds the changes to
    batch: str | None = None  # of an incremental version: the nightly batch that it was made from
    moved_files: Mapping[str, str] = field(default_factory=dict)  # snapshot files by digest: where they are now


class Plans:
    """Which versions exist, and which are planned."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, version: JobVersion, *, file_sha256: str) -> None:
        """Make a pinned version known; nothing happens when it is known already."""
        with self._database.write("register") as connection:
            connection.execute(
                insert_if_absent(connection, versions),
                {
                    "job_version": version.id,
                    "job": version.job,
                    "label": version.label,
                    "digest": version.digest,
                    "file_sha256": file_sha256,
                    "records": version.records,
                    "shards": version.shards,
                    "pinned_at": connection.scalar(sa.select(self._database.now())),
                    "base_version": version.changes.base if version.changes is not None else None,
                    "batch": version.changes.batch if version.changes is not None else None,
                },
            )

    def find_digest(self, digest: str) -> str | None:
        """The version with this identity, whatever its label."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(versions.c.job_version).where(versions.c.digest == digest))

    def list(self, job: str | None = None) -> list[RegisteredVersion]:
        """Versions of one job or of all, the newest first."""
        query = sa.select(versions).order_by(versions.c.pinned_at.desc(), versions.c.job_version)
        if job is not None:
            query = query.where(versions.c.job == job)
        with self._database.read() as connection:
            return [_registered(row) for row in connection.execute(query)]

    def get(self, job_version: str) -> RegisteredVersion:
        """One version. Raises VersionError when it is not registered."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(versions).where(versions.c.job_version == job_version)).first()
        if row is None:
            raise VersionError(f"No job version {job_version!r} is known here; `batch-assets versions` lists them.")
        return _registered(row)

    def move_files(self, job_version: str, moved: Mapping[str, str]) -> None:
        """Remember where snapshot files lie now; their content is what was pinned."""
        statement = sa.update(versions).where(versions.c.job_version == job_version)
        with self._database.write("move_files") as connection:
            connection.execute(statement.values(moved_files=json.dumps(dict(moved))))

    def write_plan(self, version: JobVersion, dead: Iterable[tuple[int, Failure]]) -> int:
        """Write the shard table and the dead letters known in advance; returns how many of these.

        `dead` yields (snapshot row number, failure). Planning again changes nothing. The whole
        plan is one transaction: claims find either no shard or all of them.
        """
        attach_partitions(self._database, version.id)
        with self._database.write("plan") as connection:
            known = connection.execute(
                sa.select(versions).where(versions.c.job_version == version.id).with_for_update()
            ).one()
            if known.planned_at is not None:
                return self._planned_dead_letters(connection, version.id)
            if known.cancelled_at is not None:
                raise VersionError(f"{version.id} was cancelled; a cancelled version is not planned.")
            now = connection.scalar(sa.select(self._database.now()))
            if now is None:
                raise StoreError("The ledger database did not answer with its time; try again.")
            dead_by_shard: dict[int, int] = {}
            for batch in _batches(self._dead_rows(version, dead, now)):
                connection.execute(sa.insert(outcomes), batch)
                for row in batch:
                    dead_by_shard[row["shard"]] = dead_by_shard.get(row["shard"], 0) + 1
            for batch in _batches(_shard_rows(version, dead_by_shard)):
                connection.execute(sa.insert(shards), batch)
            connection.execute(sa.update(versions).where(versions.c.job_version == version.id).values(planned_at=now))
            return sum(dead_by_shard.values())

    @staticmethod
    def _planned_dead_letters(connection: sa.Connection, job_version: str) -> int:
        query = sa.select(sa.func.coalesce(sa.func.sum(shards.c.dead_letters), 0))
        return int(connection.scalar(query.where(shards.c.job_version == job_version)) or 0)

    @staticmethod
    def _dead_rows(version: JobVersion, dead: Iterable[tuple[int, Failure]], now: float) -> Iterator[dict[str, Any]]:
        for row, failure in dead:
            yield {
                "job_version": version.id,
                "shard": shard_of_row(row, shard_size=version.shard_size),
                **key_columns(failure.record_id),
                "kind": "dead_letter",
                "attempt": failure.attempt,
                "reason": failure.reason.value,
                "error": storable(failure.error),
                "engine": "",
                "worker": "planner",
                "epoch": 0,
                "prompt_tokens": failure.prompt_tokens,
                "output_tokens": 0,
                "stored_at": now,
            }


def _shard_rows(version: JobVersion, dead_by_shard: dict[int, int]) -> Iterator[dict[str, Any]]:
    for shard in range(version.shards):
        rows = shard_range(shard, shard_size=version.shard_size, records=version.records)
        yield {
            "job_version": version.id,
            "shard": shard,
            "records": len(rows),
            "dead_letters": dead_by_shard.get(shard, 0),
        }


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _registered(row: Any) -> RegisteredVersion:
    return RegisteredVersion(
        job_version=row.job_version,
        job=row.job,
        label=row.label,
        records=row.records,
        shards=row.shards,
        pinned_at=row.pinned_at,
        planned=row.planned_at is not None,
        cancelled=row.cancelled_at is not None,
        retired=row.retired_at is not None,
        file_sha256=row.file_sha256,
        base_version=row.base_version,
        batch=row.batch,
        moved_files=json.loads(row.moved_files) if row.moved_files else {},
    )


def file_sha256(data: bytes) -> str:
    """Digest of a version file, as kept beside its registration."""
    return hashlib.sha256(data).hexdigest()
