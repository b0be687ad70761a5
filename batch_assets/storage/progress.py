"""How far a version is and how fast it goes. Sums over the shard table, never over records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from batch_assets.core.leases import SHARD_STATES
from batch_assets.storage.database import Database
from batch_assets.storage.outcomes import BUCKET_S
from batch_assets.storage.tables import outcomes, shards, throughput

RATE_WINDOW_S = 120  # long enough to smooth a batch of slow records, short enough to see a stall


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of one version."""

    records: int  # in planned shards
    results: int
    dead_letters: int
    duplicates_discarded: int
    shards: dict[str, int]  # by state; every state is a key
    records_per_s: float | None  # None until something was measured
    tokens_per_s: float | None  # output tokens
    prefix_hit_rate: float | None  # prompt tokens served by the prefix cache
    workers: tuple[str, ...]  # who holds leases now

    @property
    def pending(self) -> int:
        return self.records - self.results - self.dead_letters

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last record at the present rate; None without a rate."""
        if self.pending == 0:
            return 0.0
        return self.pending / self.records_per_s if self.records_per_s else None


@dataclass(frozen=True, kw_only=True)
class ShardRow:
    """A shard as listed: its state, and its sealed file once it has one."""

    shard: int
    state: str
    epoch: int
    owner: str | None
    records: int
    results: int
    dead_letters: int
    duplicates_discarded: int
    recoveries: int  # workers lost here in a row without progress
    reopened: int  # how often dead letters of the sealed shard were put back
    trouble: str | None  # what is known of the last worker that failed here
    sealed_key: str | None
    sealed_sha256: str | None
    sealed_bytes: int | None


class Totals(NamedTuple):
    """What all work on a version came to."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt tokens, those that the prefix cache served
    output_tokens: int
    busy_s: int  # time in which outcomes were stored, by whatever number of workers


class _Rate(NamedTuple):
    records_per_s: float | None
    tokens_per_s: float | None
    prefix_hit_rate: float | None


class ProgressReader:
    """Read-only views of the shard table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, job_version: str) -> Progress:
        """The version's progress; all zero before it is planned."""
        ours = shards.c.job_version == job_version
        sums = [_total(shards.c[name]) for name in _SUMMED]
        with self._database.read() as connection:
            totals = connection.execute(sa.select(*sums).where(ours)).one()
            by_state = sa.select(shards.c.state, sa.func.count()).where(ours).group_by(shards.c.state)
            states = {row[0]: row[1] for row in connection.execute(by_state)}
            owners = sa.select(shards.c.owner).where(ours, shards.c.state == "leased").distinct()
            workers = tuple(sorted(connection.scalars(owners)))
            rate = self._rate(connection, job_version, running=bool(workers))
        records, results, dead_letters, duplicates = (int(total) for total in totals)
        return Progress(
            records=records,
            results=results,
            dead_letters=dead_letters,
            duplicates_discarded=duplicates,
            shards={state: states.get(state, 0) for state in SHARD_STATES},
            workers=workers,
            records_per_s=rate.records_per_s,
            tokens_per_s=rate.tokens_per_s,
            prefix_hit_rate=rate.prefix_hit_rate,
        )

    def _rate(self, connection: sa.Connection, job_version: str, *, running: bool) -> _Rate:
        """Rates over the last two minutes of work: up to now while workers hold leases."""
        ours = throughput.c.job_version == job_version
        last = connection.scalar(sa.select(sa.func.max(throughput.c.bucket)).where(ours))
        if last is None:
            return _Rate(None, None, None)
        now = float(connection.scalar(sa.select(self._database.now())) or 0.0)
        until = now / BUCKET_S if running else last + 1
        columns = [_total(throughput.c[name]) for name in _RATED]
        recent = throughput.c.bucket >= until - RATE_WINDOW_S / BUCKET_S
        first = connection.scalar(sa.select(sa.func.min(throughput.c.bucket)).where(ours, recent))
        done, output, _, _ = connection.execute(sa.select(*columns).where(ours, recent)).one()
        _, _, prompt, cached = connection.execute(sa.select(*columns).where(ours)).one()
        seconds = max((until - first) * BUCKET_S, 1.0) if first is not None else 0.0
        return _Rate(
            records_per_s=done / seconds if seconds else 0.0,
            tokens_per_s=output / seconds if seconds else 0.0,
            prefix_hit_rate=cached / prompt if prompt else None,
        )

    def totals(self, job_version: str) -> Totals:
        """Sums over all of a version's work."""
        columns = [_total(throughput.c[name]) for name in Totals._fields[:3]]
        query = sa.select(*columns, sa.func.count() * BUCKET_S).where(throughput.c.job_version == job_version)
        with self._database.read() as connection:
            return Totals(*map(int, connection.execute(query).one()))

    def dead_letters_by_reason(self, job_version: str) -> dict[str, int]:
        """Counts by reason, the most frequent first."""
        query = (
            sa.select(outcomes.c.reason, sa.func.count().label("n"))
            .where(outcomes.c.job_version == job_version, outcomes.c.kind == "dead_letter")
            .group_by(outcomes.c.reason)
            .order_by(sa.desc("n"), outcomes.c.reason)
        )
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def shards(self, job_version: str, *, state: str | None = None) -> Iterator[ShardRow]:
        """Shards in order."""
        columns = [shards.c[name] for name in ShardRow.__dataclass_fields__]
        query = sa.select(*columns).where(shards.c.job_version == job_version).order_by(shards.c.shard)
        if state is not None:
            query = query.where(shards.c.state == state)
        with self._database.read() as connection:
            for row in connection.execute(query):
                yield _shard_row(row)


_SUMMED = ("records", "results", "dead_letters", "duplicates_discarded")
_RATED = ("outcomes", "output_tokens", "prompt_tokens", "cached_tokens")


def _total(column: sa.Column[int]) -> sa.ColumnElement[int]:
    """A sum that is a number even over no rows; PostgreSQL would make it a decimal."""
    return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)


def _shard_row(row: Any) -> ShardRow:
    return ShardRow(**row._mapping)
