"""The pointer: which version readers see. One row per job, moved by compare-and-swap (invariant I3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa

from batch_assets.core.verdicts import Verdict
from batch_assets.errors import GateError, InputError, PublicationConflict
from batch_assets.storage.database import Database
from batch_assets.storage.tables import pointers, publications, shards, swept, verdicts, versions
from batch_assets.storage.upsert import insert_if_absent, insert_or_replace

_WRITTEN = ("publication_id", "job", "kind", "from_version", "to_version", "who")


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One move of the pointer."""

    publication_id: str  # chosen by the caller; a second try with the same id moves nothing
    job: str
    kind: Literal["publish", "rollback"]
    from_version: str | None  # what the pointer must show for the move to happen
    to_version: str
    who: str
    verdicts: Mapping[str, Any]
    replaces: str | None = None  # the publication that the pointer must show; left out, `from_version` is enough
    reopened: int | None = None  # how often shards had been reopened when its verdicts were read
    override: str | None = None  # why it was published although checks that block had failed
    overrode: tuple[str, ...] = ()  # these checks
    at: str = ""  # set by the ledger, ISO 8601, UTC
    sequence: int = 0  # set by the ledger: counts the job's moves from 1


@dataclass(frozen=True, kw_only=True)
class KeptVerdict:
    """The latest verdict of a check, whether or not it still counts."""

    verdict: Verdict
    at: str  # ISO 8601, UTC
    content: str  # digest of what was judged
    basis: str  # digest of what it was judged by


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

    def pointer(self, job: str) -> Publication | None:
        """The move that the pointer of this job stands for; None when nothing is published."""
        with self._database.read() as connection:
            row = connection.execute(_standing().where(pointers.c.job == job)).first()
        return None if row is None else _publication(row)

    def pointers(self) -> dict[str, Publication]:
        """For every job that has something published, the move that its pointer stands for."""
        with self._database.read() as connection:
            return {row.job: _publication(row) for row in connection.execute(_standing().order_by(pointers.c.job))}

    def find(self, publication_id: str) -> Publication | None:
        """The move with this id, if it has happened."""
        with self._database.read() as connection:
            row = connection.execute(_by_id(publication_id)).first()
        return None if row is None else _publication(row)

    def reopenings(self, job_version: str) -> int:
        """How often shards of the version were reopened; the content of a complete version changes no other way."""
        with self._database.read() as connection:
            return count_reopened(connection, job_version)

    def refuse_swept(self, job_version: str) -> None:
        """Raise GateError for a version whose files were removed; `move` asks again, in its transaction."""
        with self._database.read() as connection:
            refuse_swept(connection, job_version)

    def move(self, publication: Publication) -> Publication:
        """Switch the pointer and write the history line, in one transaction; returns the move as it stands there.

        A publication id that is in the history already has happened, and is not repeated: the answer is
        the move that it stands for. Raises PublicationConflict when the pointer does not show what the
        publication replaces, InputError when its id stands for another move, and GateError when the
        version has shards that are not completed, was changed since it was judged, is retired, or had
        its files removed.
        """
        with self._database.write("publish") as connection:
            # Whoever puts dead letters back, or sweeps files, locks the same row: one of the two, never both.
            retired_at = connection.scalar(
                sa.select(versions.c.retired_at)
                .where(versions.c.job_version == publication.to_version)
                .with_for_update()
            )
            # After the lock: the first try may have been committing until now.
            known = connection.execute(_by_id(publication.publication_id)).first()
            if known is not None:
                return refuse_other_use(_publication(known), publication)
            if retired_at is not None and publication.kind == "publish":
                raise GateError(
                    f"{publication.to_version} was retired and is not published. If it was published before, "
                    f"`batch-assets rollback {publication.job} --to {publication.to_version}` goes back to it."
                )
            refuse_swept(connection, publication.to_version)
            self._refuse_open_shards(connection, publication.to_version)
            if publication.reopened not in (None, count_reopened(connection, publication.to_version)):
                raise GateError(
                    f"{publication.to_version} was changed after it was judged: dead letters were put back. Nothing was "
                    f"published; `batch-assets check {publication.to_version}` judges it as it is now."
                )
            if not self._swap(connection, publication):
                raise _conflict(connection, publication)
            row = {name: getattr(publication, name) for name in _WRITTEN}
            row["verdicts"] = json.dumps(dict(publication.verdicts))
            row["override"] = _override_text(publication)
            row["at"] = connection.scalar(sa.select(self._database.now()))
            last = sa.select(sa.func.coalesce(sa.func.max(publications.c.sequence), 0))
            # The pointer's row is ours until the commit, so no other move can take the same number.
            row["sequence"] = int(connection.scalar(last.where(publications.c.job == publication.job)) or 0) + 1
            inserted = insert_if_absent(connection, publications).returning(publications)
            written = connection.execute(inserted, row).first()
            if written is None:  # another job took the id between our look and now
                raise InputError(_USED.format(id=publication.publication_id, by="another job"))
            return _publication(written)

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
        if publication.replaces is not None:
            # A version may be published, replaced and rolled back to: the same version is not the same publication.
            moved = moved.where(pointers.c.publication_id == publication.replaces)
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
        return [_verdict(body) for body in bodies]

    def kept_verdicts(self, job_version: str) -> list[KeptVerdict]:
        """The latest verdict of each check, given on whatever content the version had then."""
        query = sa.select(verdicts).where(verdicts.c.job_version == job_version).order_by(verdicts.c.check_name)
        with self._database.read() as connection:
            return [
                KeptVerdict(
                    verdict=_verdict(json.loads(row.body)),
                    at=_iso(row.at),
                    content=row.content_sha256,
                    basis=row.basis_sha256,
                )
                for row in connection.execute(query)
            ]


def refuse_swept(connection: sa.Connection, job_version: str) -> None:
    """Raise GateError for a version whose files retention has removed."""
    row = connection.execute(sa.select(swept).where(swept.c.job_version == job_version)).first()
    if row is not None:
        raise GateError(
            f"The files of {job_version} were removed by {row.who} on {_iso(row.at)} (`batch-assets sweep`), so readers cannot "
            "be taken to it any more; they see what they saw. The same content is the same version, so publish another one."
        )


def refuse_other_use(known: Publication, wanted: Publication) -> Publication:
    """The known move, if its id was meant for the same one. Raises InputError otherwise."""
    if (known.job, known.kind, known.to_version) != (wanted.job, wanted.kind, wanted.to_version):
        raise InputError(
            _USED.format(id=known.publication_id, by=f"the {known.kind} of {known.to_version} in {known.job}")
        )
    return known


_USED = "The publish id {id!r} was used for {by}. Nothing was changed; give this move an id of its own."


def _conflict(connection: sa.Connection, publication: Publication) -> PublicationConflict:
    row = connection.execute(sa.select(pointers).where(pointers.c.job == publication.job)).first()
    found = None if row is None else row.job_version
    detail = ""
    if row is not None and publication.replaces is not None:
        detail = f" (expected publication {publication.replaces}, found {row.publication_id})"
    return PublicationConflict(
        f"{publication.job} shows {found or 'nothing'} now, and {publication.from_version or 'nothing'} was expected{detail}: "
        "somebody published meanwhile. Nothing was changed; look at `batch-assets history "
        f"{publication.job}` and decide again.",
        expected=publication.from_version,
        found=found,
    )


def _standing() -> sa.Select[Any]:
    return sa.select(publications).join(pointers, pointers.c.publication_id == publications.c.publication_id)


def _by_id(publication_id: str) -> sa.Select[Any]:
    return sa.select(publications).where(publications.c.publication_id == publication_id)


def count_reopened(connection: sa.Connection, job_version: str) -> int:
    """How often shards of the version were reopened, in the caller's transaction."""
    total = sa.cast(sa.func.coalesce(sa.func.sum(shards.c.reopened), 0), sa.BigInteger)
    return int(connection.scalar(sa.select(total).where(shards.c.job_version == job_version)) or 0)


def _override_text(publication: Publication) -> str | None:
    if publication.override is None:
        return None
    return json.dumps({"reason": publication.override, "checks": list(publication.overrode)})


def _verdict(body: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**body, "example_ids": tuple(body["example_ids"])})


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _publication(row: Any) -> Publication:
    override = json.loads(row.override) if row.override else {}
    return Publication(
        publication_id=row.publication_id,
        job=row.job,
        kind=row.kind,
        from_version=row.from_version,
        to_version=row.to_version,
        who=row.who,
        verdicts=json.loads(row.verdicts),
        override=override.get("reason"),
        overrode=tuple(override.get("checks", ())),
        at=_iso(row.at),
        sequence=row.sequence,
    )
