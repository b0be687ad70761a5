"""What an operator does to a version: requeue shards, cancel it, put dead letters back, retire it.

Each can be done twice, or sent again after a lost answer, with the same end. Whoever works on a shard
at that moment is fenced: its next write is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_assets.core.leases import SHARD_STATES
from batch_assets.errors import GateError, VersionError
from batch_assets.storage.database import Database
from batch_assets.storage.partitions import drop_rows
from batch_assets.storage.tables import (
    failures,
    file_sets,
    outcomes,
    pointers,
    publications,
    retries,
    shards,
    throughput,
    trials,
    verdicts,
    versions,
    waste,
)

_UNLEASED = {"owner": None, "claim_id": None, "lease_expires_at": None}
_FRESH = {"recoveries": 0, "trouble": None}


@dataclass(frozen=True, kw_only=True)
class Retried:
    """What putting dead letters back has done."""

    retry: int | None  # its number; None when there was no such dead letter
    records: int
    shards: int


class Interventions:
    """Moves that only a person asks for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def requeue(self, job_version: str, wanted: Sequence[int]) -> dict[int, str]:
        """Hand shards that wait for an operator back to the workers; returns the state each was found in.

        Shards in any other state stay as they are. Raises VersionError for a shard that does not exist.
        """
        ours = (shards.c.job_version == job_version, shards.c.shard.in_(wanted))
        with self._database.write("requeue") as connection:
            query = sa.select(shards.c.shard, shards.c.state).where(*ours).order_by(shards.c.shard)
            found = {row.shard: row.state for row in connection.execute(query.with_for_update())}
            if missing := sorted(set(wanted) - set(found)):
                raise VersionError(
                    f"{job_version} has no shard {', '.join(map(str, missing))}; `batch-assets shards {job_version}` "
                    "lists them. Nothing was changed."
                )
            waiting = sa.update(shards).where(*ours, shards.c.state == "needs_operator")
            connection.execute(waiting.values(state="pending", **_FRESH))
            # Suspicion starts anew as well: the operator has looked at it.
            freed = [shard for shard, state in found.items() if state == "needs_operator"]
            connection.execute(sa.delete(trials).where(trials.c.job_version == job_version, trials.c.shard.in_(freed)))
        return found

    def cancel(self, job_version: str) -> dict[str, int]:
        """Withdraw a version for good; returns its shards by state afterwards.

        Completed shards stay completed. Raises GateError for a published version: readers see it.
        """
        with self._database.write("cancel") as connection:
            _lock(connection, job_version)
            _refuse_published(connection, job_version, "cancelled")
            open_shards = sa.update(shards).where(
                shards.c.job_version == job_version, shards.c.state.in_(("pending", "leased", "needs_operator"))
            )
            connection.execute(open_shards.values(state="cancelled", **_UNLEASED))
            whole = _states(connection, job_version)
            if set(whole) == {"completed"}:
                return whole  # there was nothing to withdraw
            connection.execute(
                sa.update(versions)
                .where(versions.c.job_version == job_version, versions.c.cancelled_at.is_(None))
                .values(cancelled_at=self._database.now())
            )
        return whole

    def retry_dead_letters(self, job_version: str, reason: str, *, who: str) -> Retried:
        """Put the dead letters of a reason back to pending, each with three fresh attempts.

        The old attempts are kept under the number of this retry. Sealed shards that hold such a dead
        letter are reopened; they are sealed anew, under another key, when the records have an outcome.
        Raises GateError when the version is or was published, VersionError when it is cancelled or retired.
        """
        dead = (outcomes.c.job_version == job_version, outcomes.c.kind == "dead_letter", outcomes.c.reason == reason)
        with self._database.write("retry_dead_letters") as connection:
            version = _lock(connection, job_version)
            _refuse_published(connection, job_version, "changed")
            if _was_published(connection, job_version):
                raise GateError(
                    f"{job_version} was published once, and readers can be taken back to it: it stays as it was judged. Pin a "
                    "new version to answer its dead letters."
                )
            if version.cancelled_at is not None or version.retired_at is not None:
                raise VersionError(f"{job_version} was {'cancelled' if version.cancelled_at else 'retired'} for good.")
            affected = list(connection.scalars(sa.select(outcomes.c.shard).where(*dead).distinct()))
            if not affected:
                return Retried(retry=None, records=0, shards=0)
            last = sa.select(sa.func.coalesce(sa.func.max(retries.c.retry), 0))
            retry = int(connection.scalar(last.where(retries.c.job_version == job_version)) or 0) + 1
            # Counted when a shard is locked: until then its worker may add to its dead letters.
            records = sum(self._reopen(connection, job_version, shard, reason, retry) for shard in sorted(affected))
            now = connection.scalar(sa.select(self._database.now()))
            connection.execute(
                sa.insert(retries).values(
                    job_version=job_version, retry=retry, reason=reason, records=records, who=who, at=now
                )
            )
        return Retried(retry=retry, records=records, shards=len(affected))

    @staticmethod
    def _reopen(connection: sa.Connection, job_version: str, shard: int, reason: str, retry: int) -> int:
        ours = (shards.c.job_version == job_version, shards.c.shard == shard)
        row = connection.execute(sa.select(shards).where(*ours).with_for_update()).one()
        dead = (
            outcomes.c.job_version == job_version,
            outcomes.c.shard == shard,
            outcomes.c.kind == "dead_letter",
            outcomes.c.reason == reason,
        )
        connection.execute(
            sa.update(failures)
            .where(
                failures.c.job_version == job_version,
                failures.c.shard == shard,
                failures.c.retry == 0,
                failures.c.record_id.in_(sa.select(outcomes.c.record_id).where(*dead)),
            )
            .values(retry=retry)
        )
        # The worker that has the shard now is sent away: whoever is on trial there is not to blame.
        on_trial = sa.update(trials).where(trials.c.job_version == job_version, trials.c.shard == shard)
        connection.execute(on_trial.values(running=0))
        removed = connection.execute(sa.delete(outcomes).where(*dead)).rowcount
        sealed = {"sealed_key": None, "sealed_sha256": None, "sealed_bytes": None}
        values = {**sealed, "completed_by": None, "completed_at": None, **_UNLEASED}
        connection.execute(
            sa.update(shards)
            .where(*ours)
            .values(
                state="needs_operator" if row.state == "needs_operator" else "pending",
                dead_letters=shards.c.dead_letters - removed,
                claimed_outcomes=0,
                reopened=shards.c.reopened + (1 if row.state == "completed" else 0),
                **values,
            )
        )
        return removed

    def retire(self, job_version: str, *, forget: bool = False) -> bool:
        """Drop a settled version's rows per record; False when that was done before.

        What was published stays readable and can be rolled back to: its sealed files and its shard
        table are kept. `forget` says that the version is to go altogether: from here on it cannot be
        published any more. Raises GateError while shards are open or readers see the version, when what
        was published is to be forgotten, and when results that nobody has published would be.
        """
        with self._database.write("retire") as connection:
            row = _lock(connection, job_version)
            _refuse_published(connection, job_version, "retired")
            was_published = _was_published(connection, job_version)
            if forget and was_published:
                raise GateError(
                    f"{job_version} was published once and can be rolled back to, so it is not forgotten. Without --forget "
                    "its rows are dropped and its files stay."
                )
            states = _states(connection, job_version)
            open_shards = sum(states.get(state, 0) for state in ("pending", "leased", "needs_operator"))
            if open_shards or (row.planned_at is None and row.cancelled_at is None):
                raise GateError(
                    f"{job_version} is not settled ({open_shards or 'all'} shards are open). Finish it, or cancel it first."
                )
            if set(states) == {"completed"} and not forget and not was_published:
                raise GateError(
                    f"{job_version} is complete and was never published; retired, it could not be published any more. "
                    "Publish it first, or remove it with all its results: --forget."
                )
            if row.retired_at is None:
                retired = sa.update(versions).where(versions.c.job_version == job_version)
                connection.execute(retired.values(retired_at=self._database.now()))
        drop_rows(self._database, job_version)
        return row.retired_at is None

    def forget(self, job_version: str) -> None:
        """Remove a retired version that was never published, as if it had not been pinned."""
        with self._database.read() as connection:
            retired = sa.select(versions.c.retired_at).where(versions.c.job_version == job_version)
            if connection.scalar(retired) is None:
                return
        # Retiring may have been cut short before the rows went; the version, pinned anew, must not find them.
        drop_rows(self._database, job_version)
        with self._database.write("forget") as connection:
            version = connection.execute(_version(job_version)).first()
            published = sa.select(publications.c.publication_id).where(publications.c.to_version == job_version)
            if version is None or version.retired_at is None or connection.execute(published.limit(1)).first():
                return  # unknown, or readers have seen it
            for table in (versions, shards, trials, retries, waste, throughput, verdicts, file_sets):
                connection.execute(sa.delete(table).where(table.c.job_version == job_version))


def _version(job_version: str) -> sa.Select[Any]:
    """The version's row, locked: it is planned, published, reopened, withdrawn or retired one at a time."""
    return sa.select(versions).where(versions.c.job_version == job_version).with_for_update()


def _lock(connection: sa.Connection, job_version: str) -> Any:
    row = connection.execute(_version(job_version)).first()
    if row is None:
        raise VersionError(f"No job version {job_version!r} is known here; `batch-assets versions` lists them.")
    return row


def _states(connection: sa.Connection, job_version: str) -> dict[str, int]:
    query = (
        sa.select(shards.c.state, sa.func.count()).where(shards.c.job_version == job_version).group_by(shards.c.state)
    )
    found = {row[0]: row[1] for row in connection.execute(query)}
    return {state: found[state] for state in SHARD_STATES if state in found}


def _was_published(connection: sa.Connection, job_version: str) -> bool:
    query = sa.select(publications.c.publication_id).where(publications.c.to_version == job_version).limit(1)
    return connection.execute(query).first() is not None


def _refuse_published(connection: sa.Connection, job_version: str, what: str) -> None:
    query = sa.select(pointers.c.job).where(pointers.c.job_version == job_version)
    job = connection.scalar(query.limit(1))
    if job is not None:
        raise GateError(
            f"{job_version} is what readers of {job} see now, and a published version is not {what}. "
            f"Publish another version, or `batch-assets rollback {job}`, first."
        )
