"""The ledger without one of its guards: what tests must turn red for.

Each fault replaces one function of the ledger by what a careless hand would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from batch_assets.core.leases import Lease
from batch_assets.errors import Fenced
from batch_assets.storage import database, fencing, interventions, leases, outcomes, trials
from batch_assets.storage.tables import shards, versions

_change, _hold = fencing.change, fencing.hold


def _without(monkeypatch: pytest.MonkeyPatch, *dropped: str) -> None:
    """Some of epoch, owner and state are not compared."""

    def fence(lease: Lease) -> dict[str, Any]:
        whole = {"epoch": lease.epoch, "owner": lease.owner, "state": "leased"}
        return {name: value for name, value in whole.items() if name not in dropped}

    def change(connection: sa.Connection, lease: Lease, values: Mapping[str, object], *conditions: Any) -> bool:
        compared = [shards.c[name] == value for name, value in fence(lease).items()]
        ours = (shards.c.job_version == lease.job_version, shards.c.shard == lease.shard)
        return connection.execute(sa.update(shards).where(*ours, *compared, *conditions).values(values)).rowcount == 1

    def hold(connection: sa.Connection, lease: Lease) -> Any:
        row = connection.execute(fencing.shard_row(lease).with_for_update()).one()
        if any(row._mapping[name] != value for name, value in fence(lease).items()):
            raise Fenced("refused")
        return row

    _replace_fence(monkeypatch, change, hold)


def _without_conditions(monkeypatch: pytest.MonkeyPatch, drops: Callable[[Mapping[str, object]], bool]) -> None:
    """The fence holds, but what a caller asks beyond it (expiry, wholeness) is not compared."""

    def change(connection: sa.Connection, lease: Lease, values: Mapping[str, object], *conditions: Any) -> bool:
        kept = () if drops(values) else conditions
        return _change(connection, lease, values, *kept)

    _replace_fence(monkeypatch, change, _hold)


def _without_put_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(connection: sa.Connection, lease: Lease) -> Any:
        return SimpleNamespace(**{**_hold(connection, lease)._mapping, "last_put_id": None})

    _replace_fence(monkeypatch, _change, hold)


def _without_claim_id(monkeypatch: pytest.MonkeyPatch) -> None:
    real = leases._lease_of_claim
    monkeypatch.setattr(leases, "_lease_of_claim", lambda *which: real(*which).where(sa.false()))


def _without_row_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(connection: sa.Connection, lease: Lease) -> Any:
        row = connection.execute(fencing.shard_row(lease)).one()
        if (row.state, row.epoch, row.owner) != ("leased", lease.epoch, lease.owner):
            raise Fenced("refused")
        return row

    _replace_fence(monkeypatch, _change, hold)


def _without_immediate(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ledgers opened from now on."""
    monkeypatch.setattr(database, "_begin_immediate", lambda connection: connection.exec_driver_sql("BEGIN"))


def _without_version_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(job_version: str) -> sa.Select[Any]:
        return sa.select(versions).where(versions.c.job_version == job_version)

    monkeypatch.setattr(interventions, "_version", version)


def _replace_fence(monkeypatch: pytest.MonkeyPatch, change: Callable[..., bool], hold: Callable[..., Any]) -> None:
    monkeypatch.setattr(leases, "change", change)
    for module in (outcomes, trials):
        monkeypatch.setattr(module, "hold", hold)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "epoch": lambda patch: _without(patch, "epoch"),
    "owner": lambda patch: _without(patch, "owner"),
    "state": lambda patch: _without(patch, "state"),
    "owner and state": lambda patch: _without(patch, "owner", "state"),
    "expiry": lambda patch: _without_conditions(patch, lambda values: set(values) == {"lease_expires_at"}),
    "whole": lambda patch: _without_conditions(patch, lambda values: "sealed_key" in values),
    "put_id": _without_put_id,
    "claim_id": _without_claim_id,
    "row lock": _without_row_lock,
    "version lock": _without_version_lock,
    "immediate": _without_immediate,
}
