"""A version's shards as partitions: exactly those that are sealed are materialized."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage
from sqlalchemy import Connection

from assets_tests.assets.conftest import Project, plain_metadata
from assets_tests.factories import record_id, write_script
from batch_assets.assets import gpu_step
from batch_assets.assets.runs import LAUNCHER_TAG
from batch_assets.operations.plan import plan
from batch_assets.operations.work import work

LOG = {"requests_log": "requests.jsonl"}
KILLER = {"records": {record_id(12): {"kills_engine": True}}}


def test_each_sealed_shard_is_materialized_once(project: Project) -> None:
    """One event per shard, none for the asset as a whole, and the asset's output is never emitted."""
    project.make_job(records=18, shard_size=5, script=LOG)
    version = project.pin()
    result = project.run(version)
    assert result.success
    assert project.materialized(version) == ["000000", "000001", "000002", "000003"]
    outputs = [event for event in result.all_events if event.is_successful_output]
    assert not [event for event in outputs if event.step_key.endswith("settle")]


def test_a_materialization_says_what_the_shard_holds(project: Project) -> None:
    """Row count, file, attempt, dead letters and speed are on the partition."""
    project.make_job(records=8, shard_size=5, script={"records": {record_id(6): {"error": "no"}}})
    version = project.pin()
    assert project.run(version).success
    key = dg.AssetKey(["tiny", version.job_version])
    (event,) = project.instance.fetch_materializations(
        dg.AssetRecordsFilter(key, asset_partitions=["000001"]), 5
    ).records
    metadata = plain_metadata(event.asset_materialization.metadata)
    assert metadata["dagster/partition_row_count"] == 2
    assert metadata["dead_letters"] == 1
    assert metadata["attempt"] == 1
    assert metadata["dagster/uri"].endswith("shard-000001.parquet")
    assert {"seconds", "tokens_per_s", "output_tokens_per_s"} <= metadata.keys()


def test_only_the_run_s_range_is_worked_on(project: Project) -> None:
    """A run of some partitions leaves the others alone."""
    project.make_job(records=20, shard_size=5, script=LOG)
    version = project.pin()
    assert project.run(version, (1, 2)).success
    assert project.materialized(version) == ["000001", "000002"]
    assert sorted(project.served()) == [record_id(number) for number in range(5, 15)]


def test_a_failing_run_keeps_what_is_done_and_the_next_one_finishes_it(
    project: Project, failure_text: Callable[[dg.ExecuteInProcessResult], str]
) -> None:
    """The engine dies beyond its bound: sealed shards stay, and no stored record is asked for again."""
    job = project.make_job(records=20, shard_size=5, script={**LOG, **KILLER}, engine={"restarts_max": 0})
    version = project.pin()
    failed = project.run(version)
    assert not failed.success
    assert "The engine died" in failure_text(failed)
    done = project.materialized(version)
    sealed = [
        shard.shard for shard in project.deployment.ledger.progress.shards(version.job_version, state="completed")
    ]
    assert done == [f"{shard:06d}" for shard in sealed]
    assert "000002" not in done
    stored = {
        one.record_id
        for shard in range(4)
        for one in project.deployment.ledger.outcomes.results_of_shard(version.job_version, shard)
    }
    before = project.served()

    write_script(job, LOG)
    assert project.run(version).success
    assert set(project.materialized(version)) == {"000000", "000001", "000002", "000003"}
    again = project.served()[len(before) :]
    assert not stored & set(again)
    assert stored | set(again) == {record_id(number) for number in range(20)}


def test_completed_shards_are_reported_as_reused(project: Project) -> None:
    """Running a finished range again computes nothing, starts no worker and still reports every shard."""
    project.make_job(records=10, shard_size=5, script=LOG)
    version = project.pin()
    assert project.run(version).success
    served = project.served()
    second = project.run(version)
    assert second.success
    assert project.served() == served
    assert not [event for event in second.get_step_success_events() if "gpu_worker" in event.step_key]
    reused = [plain_metadata(event.materialization.metadata)["reused"] for event in materializations(second)]
    assert reused == [True, True]


def test_the_command_line_repeats_no_events(project: Project) -> None:
    """A run started there reports only what Dagster does not know, so that finishing a big version starts at once."""
    project.make_job(records=20, shard_size=5)
    version = project.pin()
    assert project.run(version, (0, 1)).success
    run_id = str(uuid.uuid4())
    result = project.run(version, run_id=run_id, tags={LAUNCHER_TAG: f"{run_id}@host:boot:1:1"})
    assert result.success
    assert project.materialized(version) == ["000000", "000001", "000002", "000003"]


def test_a_shard_sealed_outside_of_dagster_is_reported_by_the_run(project: Project) -> None:
    """What another worker completed meanwhile is no gap in Dagster's view."""
    project.make_job(records=10, shard_size=5)
    version = project.pin()
    plan(project.deployment, version)
    work(project.deployment, project.deployment.ledger.plans.get(version.job_version), wanted=range(1))
    assert project.run(version).success
    assert project.materialized(version) == ["000000", "000001"]


def test_an_event_that_only_reached_its_runs_log_is_reported_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster writes to the run's log and then to the index that its pages read; a worker can die between."""
    index, lost = SqliteEventLogStorage._store_asset_event, []

    def dies_once(
        storage: SqliteEventLogStorage, connection: Connection, event: dg.EventLogEntry, event_id: int
    ) -> None:
        shard = event.asset_materialization.partition if event.asset_materialization is not None else None
        if shard == "000001" and not lost:
            lost.append(shard)
            raise ConnectionError("the worker died here")
        index(storage, connection, event, event_id)

    monkeypatch.setattr(SqliteEventLogStorage, "_store_asset_event", dies_once)
    project.make_job(records=15, shard_size=5)
    version = project.pin()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as project.instance:
        assert project.run(version).success
        assert lost == ["000001"]
        assert project.materialized(version) == ["000000", "000001", "000002"]


def test_input_errors_are_not_retried(
    project: Project, failure_text: Callable[[dg.ExecuteInProcessResult], str]
) -> None:
    """A duplicate id ends the run at once, in the planner's own words."""
    rows = [{"record_id": "same", "subject": "a", "body": "b", "record_class": "c", "acl": "d"} for _ in range(2)]
    project.make_job(records=rows)
    version = project.pin()
    result = project.run(version)
    assert not result.success
    assert "record ids are not unique" in failure_text(result)
    assert not [event for event in result.all_events if event.is_step_up_for_retry]


def test_an_unexpected_error_is_retried_a_few_times_only(
    project: Project, failure_text: Callable[[dg.ExecuteInProcessResult], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each retry loads the model anew, so a mistake of ours must not be tried fifty times."""
    calls: list[object] = []

    def fails(*arguments: object, **_: object) -> None:
        calls.append(arguments)
        raise KeyError("no such thing")

    monkeypatch.setattr(gpu_step, "work", fails)
    project.make_job(records=5)
    result = project.run(project.pin())
    assert not result.success
    assert len(calls) == gpu_step.UNEXPECTED_RETRIES_MAX + 1
    assert "KeyError: 'no such thing'" in failure_text(result)


def test_settle_names_the_missing_shards(
    project: Project, failure_text: Callable[[dg.ExecuteInProcessResult], str]
) -> None:
    """A run that its workers left early is not green, and says which shards to come back for."""
    project.make_job(records=30, shard_size=5)
    version = project.pin()
    plan(project.deployment, version)
    leases = project.deployment.ledger.leases
    for shard in (1, 3, 4):
        lease = leases.claim(version.job_version, owner="w", lease_s=60, wanted=range(shard, shard + 1))
        assert lease is not None
        leases.release(lease, trouble="cannot be read", recoveries_max=1)
    result = project.run(version)
    assert not result.success
    assert "3 of 6 shards" in failure_text(result)
    assert "000001, 000003 to 000004 (needs_operator)" in failure_text(result)
    assert "Re-execute" in failure_text(result)
    assert project.materialized(version) == ["000000", "000002", "000005"]


def materializations(result: dg.ExecuteInProcessResult) -> list[dg.DagsterEvent]:
    events = [event for event in result.all_events if event.event_type_value == "ASSET_MATERIALIZATION"]
    return sorted(events, key=lambda event: event.partition or "")
