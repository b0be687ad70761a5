"""The pointer: which version readers see. One row per job, moved by compare-and-swap (invariant I3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa

from batch_assets.core.verdicts import Verdict
from batch_assets.errors import GateError, PublicationConflict
from batch_assets.storage.database import Database
from batch_assets.storage.tables import pointers, publications, shards, verdicts, versions
from batch_assets.storage.upsert import insert_if_absent, insert_or_replace


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One move of the pointer."""

    publication_id: str  # chosen by the caller; a second try with the same id is a no-op
    job: str
    kind: Literal["publish", "rollback"]
    from_version: str | None  # what the pointer must show for the move to happen
    to_version: str
    who: str
    verdicts: Mapping[str, Any]
    at: str = ""  # set by the ledger


class Publications:
    """Pointers, their history, and the verdicts that allow a move."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def current(self, job: str) -> str | None:
        """The version that readers of this job see now."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(pointers.c.job_version).where(pointers.c.job == job))

    def all_current(self) -> dict[str, str]:
        """The published version of every job that has one."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(pointers.c.job, pointers.c.job_version))
            return {row[0]: row[1] for row in rows}

    def move(self, publication: Publication) -> None:
        """Switch the pointer and write the history line, in one transaction.

        Raises PublicationConflict when the pointer does not show `from_version`, and GateError when the
        version has shards that are not completed, or is retired. A publication id that is in the history already has
        happened, and is not repeated.
        """
        with self._database.write("publish") as connection:
            # Whoever puts dead letters back locks the same row: a version is reopened or published, never both.
            retired_at = connection.scalar(
                sa.select(versions.c.retired_at)
                .where(versions.c.job_version == publication.to_version)
                .with_for_update()
            )
            known = sa.select(publications.c.job).where(publications.c.publication_id == publication.publication_id)
            if connection.execute(known).first() is not None:
                return  # after the lock: the first try may have been committing until now
            if retired_at is not None and publication.kind == "publish":
                raise GateError(
                    f"{publication.to_version} was retired and is not published. If it was published before, "
                    f"`batch-assets rollback {publication.job} --to {publication.to_version}` goes back to it."
                )
            self._refuse_open_shards(connection, publication.to_version)
            if not self._swap(connection, publication):
                found = connection.scalar(sa.select(pointers.c.job_version).where(pointers.c.job == publication.job))
                raise PublicationConflict(
                    f"{publication.job} shows {found or 'nothing'} now, not {publication.from_version or 'nothing'}: "
                    "somebody published meanwhile. Nothing was changed; look at `batch-assets versions` and decide again.",
                    expected=publication.from_version,
                    found=found,
                )
            row = asdict(publication)
            row["verdicts"] = json.dumps(row["verdicts"])
            row["at"] = connection.scalar(sa.select(self._database.now()))
            last = sa.select(sa.func.coalesce(sa.func.max(publications.c.sequence), 0))
            # The pointer's row is ours until the commit, so no other move can take the same number.
            row["sequence"] = int(connection.scalar(last.where(publications.c.job == publication.job)) or 0) + 1
            connection.execute(sa.insert(publications), row)

    @staticmethod
    def _refuse_open_shards(connection: sa.Connection, job_version: str) -> None:
        is_open = sa.select(shards.c.shard).where(shards.c.job_version == job_version, shards.c.state != "completed")
        found = connection.scalar(is_open.order_by(shards.c.shard).limit(1))
        if found is not None:
            raise GateError(
                f"{job_version} has shards that are not completed ({found} is the first); nothing was published."
            )

    @staticmethod
    def _swap(connection: sa.Connection, publication: Publication) -> bool:
        values = {"job_version": publication.to_version, "publication_id": publication.publication_id}
        if publication.from_version is None:
            first = {"job": publication.job, **values}
            inserted = insert_if_absent(connection, pointers).returning(pointers.c.job)
            return connection.execute(inserted, first).first() is not None
        moved = sa.update(pointers).where(
            pointers.c.job == publication.job, pointers.c.job_version == publication.from_version
        )
        return connection.execute(moved.values(values)).rowcount == 1

    def history(self, job: str | None = None) -> list[Publication]:
        """All moves of the pointer, the newest first."""
        order = (publications.c.at.desc(),) if job is None else (publications.c.sequence.desc(),)
        query = sa.select(publications).order_by(*order, publications.c.sequence.desc())
        if job is not None:
            query = query.where(publications.c.job == job)
        with self._database.read() as connection:
            return [_publication(row) for row in connection.execute(query)]

    def record_verdicts(
        self, job_version: str, content: str, basis: Mapping[str, str], found: Sequence[Verdict]
    ) -> None:
        """Keep the latest verdict of each check, with digests of what was judged and, per check, by what."""
        with self._database.write("verdicts") as connection:
            now = connection.scalar(sa.select(self._database.now()))
            statement = insert_or_replace(connection, verdicts, ("job_version", "check_name"))
            for verdict in found:
                connection.execute(
                    statement,
                    {
                        "job_version": job_version,
                        "check_name": verdict.check,
                        "content_sha256": content,
                        "basis_sha256": basis[verdict.check],
                        "passed": int(verdict.passed),
                        "blocking": int(verdict.blocking),
                        "body": json.dumps(asdict(verdict), default=str),
                        "at": now,
                    },
                )

    def verdicts_of(self, job_version: str, content: str, basis: Mapping[str, str] | None = None) -> list[Verdict]:
        """The verdicts given on exactly this content; with `basis`, only those given by exactly this standard."""
        query = sa.select(verdicts.c.check_name, verdicts.c.basis_sha256, verdicts.c.body).where(
            verdicts.c.job_version == job_version, verdicts.c.content_sha256 == content
        )
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(verdicts.c.check_name)).all()
        bodies = [
            json.loads(row.body) for row in rows if basis is None or basis.get(row.check_name) == row.basis_sha256
        ]
        return [Verdict(**{**body, "example_ids": tuple(body["example_ids"])}) for body in bodies]


def _publication(row: Any) -> Publication:
    return Publication(
        publication_id=row.publication_id,
        job=row.job,
        kind=row.kind,
        from_version=row.from_version,
        to_version=row.to_version,
        who=row.who,
        verdicts=json.loads(row.verdicts),
        at=datetime.fromtimestamp(row.at, UTC).isoformat(timespec="milliseconds"),
    )
