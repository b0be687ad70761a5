"""What retention may remove, decided and marked in the ledger before a single file goes.

A version is published, rolled back to, or swept: all three lock the ledger's row of the version, and a
swept version is refused by the other two. Files that nothing names are removed only inside a
transaction that keeps anybody from beginning to name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.core.retention import Move, reasons_to_keep
from batch_assets.storage.database import Database
from batch_assets.storage.tables import file_sets, publications, shards, swept, versions
from batch_assets.storage.upsert import insert_if_absent

_OPEN = ("pending", "leased", "needs_operator")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to become of the versions of a job that were ever published."""

    swept: tuple[str, ...]  # in order of publication; some may have been marked by an earlier sweep
    kept: Mapping[str, str]  # version -> why


@dataclass(frozen=True, kw_only=True)
class Known:
    """What may be named in future under a version's own keys."""

    is_registered: bool
    is_swept: bool
    can_seal: bool  # a worker may still seal a shard of it
    can_merge: bool  # it was never published: changes may be merged into files of its own
    sealed: frozenset[str]  # of the keys that were asked for: those that its shards name
    merged: str | None  # the folder of the files that it is published as, if they were merged


class Retention:
    """Swept versions, and the transactions in which files may be removed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def swept(self) -> set[str]:
        """The versions whose files were removed, or are to be."""
        with self._database.read() as connection:
            return set(connection.scalars(sa.select(swept.c.job_version)))

    def decide(self, job: str, *, keep: int, grace_s: float, who: str, dry_run: bool) -> Decision:
        """Which published versions of a job lose their files; unless it is a dry run, they are marked.

        From then on they are neither published nor rolled back to: `Publications.move` looks for the mark
        under the same lock, so that a version is marked or readers are taken to it, never both.
        """
        with self._database.write("sweep") as connection:
            _hold_versions(connection)
            moves = [Move(**row._mapping) for row in connection.execute(_moves(job))]
            now = float(connection.scalar(sa.select(self._database.now())) or 0.0)
            reasons: Mapping[str, str | None] = {}
            if moves:
                bases = set(connection.scalars(_bases(job)))
                reasons = reasons_to_keep(moves, keep=keep, grace_s=grace_s, now=now, bases=bases)
            gone = set(connection.scalars(sa.select(swept.c.job_version)))
            out = [version for version, reason in reasons.items() if reason is None or version in gone]
            if not dry_run:
                for version in out:
                    row = {"job_version": version, "who": who, "at": now}
                    connection.execute(insert_if_absent(connection, swept), row)
        kept = {version: reason for version, reason in reasons.items() if reason is not None and version not in gone}
        return Decision(swept=tuple(out), kept=kept)

    def known(self, job_version: str) -> Known:
        """What the ledger knows of a version that a key speaks of; a key may speak of one that is forgotten."""
        with self._database.read() as connection:
            return _known(connection, job_version, ())

    @contextmanager
    def holding(self, job_version: str, keys: Sequence[str]) -> Iterator[Known]:
        """For the length of the block no version is pinned, reopened, published or swept.

        Short blocks and few keys only: on SQLite every other writer waits.
        """
        with self._database.write("remove_files") as connection:
            _hold_versions(connection)
            yield _known(connection, job_version, keys)

    @contextmanager
    def holding_all(self) -> Iterator[set[str]]:
        """The same; gives the versions of all jobs that are registered."""
        with self._database.write("remove_snapshots") as connection:
            _hold_versions(connection)
            yield set(connection.scalars(sa.select(versions.c.job_version)))


def _hold_versions(connection: sa.Connection) -> None:
    """Nobody registers, locks or changes a version until the commit. SQLite has one writer in any case."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("LOCK TABLE versions IN EXCLUSIVE MODE"))


def _moves(job: str) -> sa.Select[tuple[str, str | None, str, float]]:
    columns = (publications.c.kind, publications.c.from_version, publications.c.to_version, publications.c.at)
    return sa.select(*columns).where(publications.c.job == job).order_by(publications.c.sequence)


def _bases(job: str) -> sa.Select[tuple[str]]:
    """What incremental versions that may still be published hold the changes to."""
    published = sa.select(publications.c.publication_id).where(publications.c.to_version == versions.c.job_version)
    return sa.select(versions.c.base_version).where(
        versions.c.job == job,
        versions.c.base_version.is_not(None),
        versions.c.cancelled_at.is_(None),
        versions.c.retired_at.is_(None),
        ~published.exists(),
    )


def _known(connection: sa.Connection, job_version: str, keys: Sequence[str]) -> Known:
    version = connection.execute(sa.select(versions).where(versions.c.job_version == job_version)).first()
    is_open = sa.select(shards.c.shard).where(shards.c.job_version == job_version, shards.c.state.in_(_OPEN)).limit(1)
    moved = sa.select(publications.c.publication_id).where(publications.c.to_version == job_version).limit(1)
    marked = sa.select(swept.c.job_version).where(swept.c.job_version == job_version)
    sealed = sa.select(shards.c.sealed_key).where(shards.c.job_version == job_version, shards.c.sealed_key.in_(keys))
    manifest = connection.scalar(sa.select(file_sets.c.manifest_key).where(file_sets.c.job_version == job_version))
    unplanned = version is not None and version.planned_at is None and version.cancelled_at is None
    return Known(
        is_registered=version is not None,
        is_swept=connection.execute(marked).first() is not None,
        can_seal=unplanned or connection.execute(is_open).first() is not None,
        can_merge=version is not None and connection.execute(moved).first() is None,
        sealed=frozenset(connection.scalars(sealed)) if keys else frozenset(),
        merged=None if manifest is None else f"{manifest.rpartition('/')[0]}/",
    )
