"""What must hold in every ledger at every moment, whatever has happened to it.

Stateful, crash and chaos tests ask these same questions, between steps and at the end. Each takes a
ledger and a job version and raises AssertionError saying what was found; none changes anything. Each
reads in one statement, so that the answer is one moment's even while workers are at work.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy as sa

from batch_assets.storage.ledger import Ledger
from batch_assets.storage.objects import Objects
from batch_assets.storage.record_keys import record_id_of
from batch_assets.storage.tables import outcomes, shards, versions

Done = dict[int, int]  # outcomes by shard, counted in rows

_OF_SHARD = (outcomes.c.job_version == shards.c.job_version, outcomes.c.shard == shards.c.shard)


def check(
    ledger: Ledger,
    job_version: str,
    *,
    earlier: Done | None = None,
    objects: Objects | None = None,
    id_column: str = "record_id",
) -> Done:
    """Ask everything at once; returns what was done, to be passed as `earlier` the next time.

    Leave `earlier` out after an operator has put dead letters back: that is the one way for work to be
    undone. With `objects`, sealed files are read as well, record ids from `id_column`.
    """
    one_outcome_per_record(ledger, job_version)
    rows_and_counters_agree(ledger, job_version)
    completed_shards_are_whole(ledger, job_version)
    no_outcome_is_ahead_of_its_shard(ledger, job_version)
    leases_and_owners_go_together(ledger, job_version)
    done = done_by_shard(ledger, job_version)
    if earlier is not None:
        nothing_is_undone(earlier, done)
    if objects is not None:
        sealed_files_hold_the_stored_rows(ledger, job_version, objects, id_column=id_column)
    return done


def one_outcome_per_record(ledger: Ledger, job_version: str) -> None:
    """A record has one result or one dead letter at most, wherever it is filed (I1)."""
    query = sa.select(outcomes).where(outcomes.c.job_version == job_version)
    where: dict[str, list[tuple[int, str]]] = {}
    for row in _all(ledger, query):
        where.setdefault(record_id_of(row), []).append((row.shard, row.kind))
    twice = {record: found for record, found in where.items() if len(found) > 1}
    assert not twice, f"{job_version}: records with more than one outcome, as (shard, kind): {twice}"


def rows_and_counters_agree(ledger: Ledger, job_version: str) -> None:
    """Results + dead letters + pending = records, by the rows themselves and by each shard's counters."""
    for row in _counted(ledger, job_version):
        if not row.retired:  # then the rows are gone; the counters stay
            rows, told = (row.result_rows, row.dead_rows), (row.results, row.dead_letters)
            assert rows == told, f"{_name(row)}: {rows} results and dead letters by rows, {told} by its counters"
        pending = row.records - row.results - row.dead_letters
        assert pending >= 0, f"{_name(row)}: {row.results} + {row.dead_letters} outcomes for {row.records} records"
    has_shard = sa.exists().where(*_OF_SHARD)
    stray = sa.select(outcomes.c.shard).where(outcomes.c.job_version == job_version, ~has_shard).distinct()
    found = [row.shard for row in _all(ledger, stray)]
    assert not found, f"{job_version}: outcomes of shards that do not exist: {found}"


def completed_shards_are_whole(ledger: Ledger, job_version: str) -> None:
    """A completed shard has a sealed file and an outcome for every record (I2); no other has a sealed file."""
    for row in _counted(ledger, job_version):
        assert (row.sealed_key is not None) == (row.state == "completed"), (
            f"{_name(row)} is {row.state}, its sealed file is {row.sealed_key}"
        )
        done = row.results + row.dead_letters if row.retired else row.result_rows + row.dead_rows
        assert row.state != "completed" or done == row.records, (
            f"{_name(row)} is completed with {done} outcomes for {row.records} records"
        )


def no_outcome_is_ahead_of_its_shard(ledger: Ledger, job_version: str) -> None:
    """Every outcome was written under a claim that has happened; the epoch never goes back."""
    query = sa.select(outcomes, shards.c.epoch.label("now_at")).join(shards, sa.and_(*_OF_SHARD))
    for row in _all(ledger, query.where(shards.c.job_version == job_version, outcomes.c.epoch > shards.c.epoch)):
        raise AssertionError(
            f"{_name(row)}: {record_id_of(row)!r} was written by {row.worker} at epoch {row.epoch}, "
            f"the shard is at {row.now_at}"
        )


def leases_and_owners_go_together(ledger: Ledger, job_version: str) -> None:
    """Leased shards have an owner and an expiry; others have neither, and no claim."""
    for row in _all(ledger, sa.select(shards).where(shards.c.job_version == job_version)):
        held = (row.owner is not None, row.lease_expires_at is not None, row.claim_id is not None)
        told = f"{_name(row)} is {row.state} with owner {row.owner} until {row.lease_expires_at}, claim {row.claim_id}"
        assert held[:2] == (True, True) if row.state == "leased" else not any(held), told


def done_by_shard(ledger: Ledger, job_version: str) -> Done:
    """How many outcomes each shard has; shards without any are left out."""
    query = sa.select(outcomes.c.shard, sa.func.count().label("n")).where(outcomes.c.job_version == job_version)
    return {row.shard: row.n for row in _all(ledger, query.group_by(outcomes.c.shard))}


def nothing_is_undone(earlier: Done, now: Done) -> None:
    """What has an outcome keeps it: no shard has fewer than before."""
    lost = {shard: (before, now.get(shard, 0)) for shard, before in earlier.items() if now.get(shard, 0) < before}
    assert not lost, f"outcomes have gone, as shard: (before, now): {lost}"


def sealed_files_hold_the_stored_rows(
    ledger: Ledger, job_version: str, objects: Objects, *, id_column: str = "record_id"
) -> None:
    """The file of a completed shard is the one recorded, and holds exactly the shard's results."""
    for row in _counted(ledger, job_version):
        if row.state != "completed":
            continue
        data = objects.get(row.sealed_key)
        found = (hashlib.sha256(data).hexdigest(), len(data))
        assert found == (row.sealed_sha256, row.sealed_bytes), f"{_name(row)}: {row.sealed_key} is another file"
        ids = sorted(map(str, pq.read_table(io.BytesIO(data))[id_column].to_pylist()))
        assert len(ids) == row.results, f"{_name(row)}: {len(ids)} rows in the file, {row.results} results"
        if not row.retired:
            stored = sorted(one.record_id for one in ledger.outcomes.results_of_shard(job_version, row.shard))
            assert ids == stored, f"{_name(row)}: file and ledger differ in {sorted(set(ids) ^ set(stored))[:10]}"


def _counted(ledger: Ledger, job_version: str) -> list[Any]:
    """The version's shards, each with its rows counted."""
    rows = {kind: sa.select(sa.func.count()).where(*_OF_SHARD, outcomes.c.kind == kind) for kind in _KINDS}
    query = (
        sa.select(
            shards,
            (versions.c.retired_at.is_not(None)).label("retired"),
            *(rows[kind].scalar_subquery().label(name) for kind, name in _KINDS.items()),
        )
        .join(versions, versions.c.job_version == shards.c.job_version)
        .where(shards.c.job_version == job_version)
        .order_by(shards.c.shard)
    )
    return _all(ledger, query)


_KINDS = {"result": "result_rows", "dead_letter": "dead_rows"}


def _all(ledger: Ledger, query: sa.Select[Any]) -> list[Any]:
    with ledger.database.read() as connection:
        return list(connection.execute(query))


def _name(row: Any) -> str:
    return f"{row.job_version} shard {row.shard}"
