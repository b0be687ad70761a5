"""A worker whose lease is over: it stops at once, writes nothing more, and its work is counted as waste."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from assets_tests.factories import make_job, record_id, write_script
from assets_tests.homes import Home
from batch_assets.engine.scripted import ScriptedEngine
from batch_assets.errors import StoreError
from batch_assets.operations.work import work
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.outcomes import Outcomes, Put, PutReceipt

RECORDS = 100
ABORTED_WITHIN_S = 2.0


@pytest.mark.case("C22")
def test_the_first_refusal_aborts_the_shards_requests_in_the_engine(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 requests in flight: within two seconds of the refusal all are aborted; the tokens are counted as waste."""
    never = {record_id(n): {"never_returns": True} for n in range(RECORDS)}
    job = make_job(
        home.jobs, records=RECORDS, shard_size=RECORDS, script={"records": never}, lease_s=60, renew_every_s=0.1
    )
    registered = home.pinned()
    leases = home.deployment.ledger.leases
    stolen_at: list[float] = []
    aborted: list[tuple[float, list[str]]] = []
    waiting: list[int] = []
    abort = ScriptedEngine.abort

    def watch(engine: ScriptedEngine, request_ids: Sequence[str]) -> None:
        abort(engine, request_ids)
        if stolen_at and request_ids:
            aborted.append((time.monotonic(), list(request_ids)))
            waiting.append(len(engine._waiting))

    monkeypatch.setattr(ScriptedEngine, "abort", watch)

    def steal() -> bool:
        if not stolen_at and home.status(registered)["shards"]["leased"] == 1:
            if steal.calls < 5:  # type: ignore[attr-defined]
                steal.calls += 1  # type: ignore[attr-defined]
                return False
            leases.reclaim_dead(registered.job_version, lambda _owner: True)
            heir = leases.claim(registered.job_version, owner="heir", lease_s=60, wanted=range(1))
            assert heir is not None
            stolen_at.append(time.monotonic())
            steal.lease = heir  # type: ignore[attr-defined]
        return bool(aborted)

    steal.calls = 0  # type: ignore[attr-defined]
    report = work(home.deployment, registered, should_stop=steal)
    ((when, keys),) = aborted
    assert len(keys) == RECORDS
    assert when - stolen_at[0] < ABORTED_WITHIN_S
    assert waiting == [0]
    assert (report.leases_lost, report.records_aborted, report.results) == (1, RECORDS, 0)
    waste = home.deployment.ledger.waste.of(registered.job_version)
    assert waste["lost_lease"].records == RECORDS
    assert waste["lost_lease"].prompt_tokens > RECORDS
    leases.release(steal.lease)  # type: ignore[attr-defined]
    write_script(job, {})
    work(home.deployment, registered)
    assert home.status(registered)["results"] == RECORDS


def test_waste_is_counted_by_cause(home: Home) -> None:
    """Failed attempts, time-outs and engine deaths each have their own line, with the tokens that went into them."""
    faults: dict[str, Any] = {
        record_id(0): {"fail_attempts": 2},
        record_id(1): {"text": "not JSON"},
        record_id(2): {"never_returns": True},
        record_id(3): {"kills_engine": True},
    }
    make_job(home.jobs, records=8, shard_size=8, script={"records": faults}, engine={"record_deadline_s": 0.2})
    registered, report = home.worked()
    waste = home.status(registered)["waste"]
    assert waste["failed_attempt"]["records"] == 2 + 3 + 3  # and the killer's three attempts
    assert waste["timeout"]["records"] == 3
    assert waste["engine_death"]["records"] >= report.engine_restarts
    assert all(total["prompt_tokens"] > 0 for total in waste.values())


@pytest.mark.case("C39")
def test_a_store_that_is_full_for_twenty_writes_loses_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records stay pending, nothing is marked done, and the work resumes when the store is back."""
    make_job(home.jobs, records=60, shard_size=20, script={})
    registered = home.pinned()
    put, store = Outcomes.put, LocalObjects.put_if_absent
    refused: list[str] = []

    def full(outcomes: Outcomes, flush: Put) -> PutReceipt:
        if len(refused) < 10:
            refused.append("ledger")
            state = home.status(registered)
            assert (state["results"], state["shards"]["completed"]) == (0, 0)
            raise StoreError("No space left on device")
        return put(outcomes, flush)

    def full_disk(objects: LocalObjects, key: str, data: bytes) -> bool:
        if len(refused) < 20:
            refused.append("objects")
            assert home.status(registered)["shards"]["completed"] == 0
            raise StoreError("503 Slow Down")
        return store(objects, key, data)

    monkeypatch.setattr("batch_assets.worker.patience.WAIT_MAX_S", 0.05)
    monkeypatch.setattr(Outcomes, "put", full)
    monkeypatch.setattr(LocalObjects, "put_if_absent", full_disk)
    report = work(home.deployment, registered)
    assert len(refused) == 20
    assert (report.shards_completed, report.results, report.duplicates_discarded) == (3, 60, 0)
