"""Results, dead letters and failed attempts: put if absent, fenced by the shard's epoch.

A put is one transaction: results, dead letters, failures and counters become visible together or
not at all. It carries an id, so that a put whose answer was lost can be sent again and changes
nothing twice.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import DeadLetter, Failure, Result
from batch_assets.core.waste import Wasted
from batch_assets.storage.database import Database
from batch_assets.storage.fencing import hold
from batch_assets.storage.record_keys import key_columns, record_id_of, record_key, storable
from batch_assets.storage.tables import failures, outcomes, shards, throughput
from batch_assets.storage.upsert import insert_if_absent, insert_or_add

BUCKET_S = 10
_ID = (outcomes.c.record_id, outcomes.c.long_record_id)
_LIST_BATCH = 5000


@dataclass(frozen=True, kw_only=True)
class Put:
    """One flush of one shard. Sending the same Put again is harmless."""

    lease: Lease
    results: Sequence[Result] = ()
    failures: Sequence[Failure] = ()
    engine: str = ""
    put_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, kw_only=True)
class PutReceipt:
    """What the ledger did with a flush."""

    stored: int  # results
    dead_lettered: int
    discarded: int  # second writers of a record: counted, not an error
    wasted: Wasted = field(default_factory=Wasted)  # what went into those


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """A result as the ledger keeps it until its shard is sealed and pruned."""

    record_id: str
    payload: str
    attempt: int
    finish_reason: str
    engine: str
    stored_at: float


class Outcomes:
    """What became of the records."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, put: Put) -> PutReceipt:
        """Store a flush if the lease is current. Raises Fenced, and stores nothing, when it is not."""
        lease = put.lease
        ours = (shards.c.job_version == lease.job_version, shards.c.shard == lease.shard)
        with self._database.write("put") as connection:
            row = hold(connection, lease)
            final = [failure for failure in put.failures if failure.is_final]
            if row.last_put_id == put.put_id:
                return PutReceipt(stored=len(put.results), dead_lettered=len(final), discarded=0)
            now = float(connection.scalar(sa.select(self._database.now())) or 0.0)
            common = _common(put, now)
            new_results = _insert(connection, outcomes, [{**common, **_result_row(result)} for result in put.results])
            new_dead = _insert(connection, outcomes, [{**common, **_dead_row(failure)} for failure in final])
            _insert(connection, failures, [_failure_row(put, failure, now) for failure in put.failures])
            stored, dead = len(new_results), len(new_dead)
            discarded = len(put.results) + len(final) - stored - dead
            connection.execute(
                sa.update(shards)
                .where(*ours)
                .values(
                    results=shards.c.results + stored,
                    dead_letters=shards.c.dead_letters + dead,
                    duplicates_discarded=shards.c.duplicates_discarded + discarded,
                    last_put_id=put.put_id,
                )
            )
            _count_throughput(connection, put, done=stored + dead, now=now)
        wasted = _discarded(put.results, new_results)
        return PutReceipt(stored=stored, dead_lettered=dead, discarded=discarded, wasted=wasted)

    def settled_ids(self, job_version: str, shard: int) -> set[str]:
        """Ids of the shard's records that have an outcome. At most one shard's worth."""
        query = sa.select(*_ID).where(outcomes.c.job_version == job_version, outcomes.c.shard == shard)
        with self._database.read() as connection:
            return {record_id_of(row) for row in connection.execute(query)}

    def failed_attempts(self, job_version: str, shard: int) -> dict[str, int]:
        """How many attempts the shard's records have used up, for those that failed at least once.

        What was tried before an operator put a dead letter back does not count.
        """
        columns = (failures.c.record_id, failures.c.long_record_id)
        query = (
            sa.select(*columns, sa.func.max(failures.c.attempt).label("attempts"))
            .where(failures.c.job_version == job_version, failures.c.shard == shard, failures.c.retry == 0)
            .group_by(*columns)
        )
        with self._database.read() as connection:
            return {record_id_of(row): row.attempts for row in connection.execute(query)}

    def results_of_shard(self, job_version: str, shard: int) -> list[StoredResult]:
        """The shard's results by record id (as text)."""
        query = (
            sa.select(outcomes)
            .where(outcomes.c.job_version == job_version, outcomes.c.shard == shard, outcomes.c.kind == "result")
            .order_by(outcomes.c.record_id)
        )
        with self._database.read() as connection:
            return [
                StoredResult(
                    record_id=record_id_of(row),
                    payload=row.payload,
                    attempt=row.attempt,
                    finish_reason=row.finish_reason,
                    engine=row.engine,
                    stored_at=row.stored_at,
                )
                for row in connection.execute(query)
            ]

    def dead_letters(self, job_version: str, *, reason: str | None = None) -> Iterator[DeadLetter]:
        """A version's dead letters in (shard, key) order, in batches; no transaction stays open between them."""
        place = sa.tuple_(outcomes.c.shard, outcomes.c.record_id)
        query = _dead_letters(job_version, reason).limit(_LIST_BATCH)
        after: tuple[int, str] = (-1, "")
        while True:
            with self._database.read() as connection:
                rows = connection.execute(query.where(place > after)).all()
            yield from map(_dead_letter, rows)
            if len(rows) < _LIST_BATCH:
                return
            after = (rows[-1].shard, rows[-1].record_id)

    def dead_letter_examples(self, job_version: str, reason: str, *, count: int = 3) -> list[DeadLetter]:
        """The first few dead letters of a reason."""
        with self._database.read() as connection:
            return [_dead_letter(row) for row in connection.execute(_dead_letters(job_version, reason).limit(count))]


def _dead_letters(job_version: str, reason: str | None) -> sa.Select[Any]:
    columns = (outcomes.c.shard, outcomes.c.reason, outcomes.c.error, outcomes.c.attempt, outcomes.c.stored_at)
    query = sa.select(*_ID, *columns).where(outcomes.c.job_version == job_version, outcomes.c.kind == "dead_letter")
    if reason is not None:
        query = query.where(outcomes.c.reason == reason)
    return query.order_by(outcomes.c.shard, outcomes.c.record_id)


def _dead_letter(row: Any) -> DeadLetter:
    return DeadLetter(
        record_id=record_id_of(row),
        shard=row.shard,
        reason=row.reason,
        error=row.error,
        attempts=row.attempt,
        at=datetime.fromtimestamp(row.stored_at, UTC).isoformat(timespec="seconds"),
    )


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> list[str]:
    """Put if absent; returns the keys of the rows that were new."""
    if not rows:
        return []
    statement = insert_if_absent(connection, table).returning(table.c.record_id)
    return list(connection.scalars(statement, rows))


def _discarded(results: Sequence[Result], new: Sequence[str]) -> Wasted:
    """What went into results that were not the first of their record."""
    if len(new) == len(results):
        return Wasted()
    missing = Counter(record_key(result.record_id) for result in results) - Counter(new)
    late = [result for result in results if missing[record_key(result.record_id)]]
    return Wasted(
        records=len(results) - len(new),
        prompt_tokens=sum(result.prompt_tokens for result in late),
        output_tokens=sum(result.output_tokens for result in late),
    )


def _common(put: Put, now: float) -> dict[str, Any]:
    return {
        "job_version": put.lease.job_version,
        "shard": put.lease.shard,
        "engine": put.engine,
        "worker": put.lease.owner,
        "epoch": put.lease.epoch,
        "stored_at": now,
    }


def _result_row(result: Result) -> dict[str, Any]:
    return {
        **key_columns(result.record_id),
        "kind": "result",
        "attempt": result.attempt,
        "payload": result.payload,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
    }


def _dead_row(failure: Failure) -> dict[str, Any]:
    return {
        **key_columns(failure.record_id),
        "kind": "dead_letter",
        "attempt": failure.attempt,
        "reason": failure.reason.value,
        "error": storable(failure.error),
        "prompt_tokens": failure.prompt_tokens,
        "output_tokens": failure.output_tokens,
    }


def _failure_row(put: Put, failure: Failure, now: float) -> dict[str, Any]:
    return {
        "job_version": put.lease.job_version,
        "shard": put.lease.shard,
        **key_columns(failure.record_id),
        "attempt": failure.attempt,
        "reason": failure.reason.value,
        "error": storable(failure.error),
        "epoch": put.lease.epoch,
        "worker": put.lease.owner,
        "at": now,
    }


def _count_throughput(connection: sa.Connection, put: Put, *, done: int, now: float) -> None:
    items: list[Result | Failure] = [*put.results, *put.failures]
    sums = ("outcomes", "prompt_tokens", "cached_tokens", "output_tokens")
    row = {
        "job_version": put.lease.job_version,
        "bucket": int(now // BUCKET_S),
        "outcomes": done,
        "prompt_tokens": sum(item.prompt_tokens for item in items),
        "cached_tokens": sum(result.cached_tokens for result in put.results),
        "output_tokens": sum(item.output_tokens for item in items),
    }
    connection.execute(insert_or_add(connection, throughput, ("job_version", "bucket"), sums), row)
