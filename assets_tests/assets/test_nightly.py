"""The nightly round in Dagster: its schedule, its job, and what the UI is told."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.assets.conftest import Project
from assets_tests.factories import make_records, record_id
from batch_assets.assets.instance import dagster_home
from batch_assets.assets.reload import note_ui, reload_ui
from batch_assets.errors import SpecError
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.work import work

NIGHTLY = {"batches": "nights", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def published(project: Project) -> None:
    """A published job whose folder of batches is empty."""
    (project.make_job(records=10, nightly=NIGHTLY) / "nights").mkdir()
    version = project.pin()
    project.run(version)
    work(project.deployment, project.deployment.ledger.plans.get(version.job_version))
    check(project.deployment, version)
    publish(project.deployment, version)


def add_batch(project: Project, name: str) -> None:
    rows = [{**make_records(12)[number], "body": name} for number in (4, 11)]
    pq.write_table(pa.Table.from_pylist(rows), project.root / "jobs" / "tiny" / "nights" / f"{name}.parquet")


def tick(project: Project) -> dg.RunRequest | dg.SkipReason:
    schedule = project.definitions().get_repository_def().get_schedule_def("tiny__nightly_schedule")
    with dg.DagsterInstance.from_config(str(dagster_home(project.settings))) as instance:
        data = schedule.evaluate_tick(dg.build_schedule_context(instance=instance))
    if data.run_requests:
        return data.run_requests[0]
    return dg.SkipReason(data.skip_message)


def test_the_schedule_starts_a_round_when_a_batch_waits(project: Project) -> None:
    """A tick that starts nothing says why; one after a rollback starts a run, which fails where people look."""
    published(project)
    schedule = project.definitions().get_repository_def().get_schedule_def("tiny__nightly_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 2 * * *", "Europe/Berlin")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert tick(project) == dg.SkipReason("No batch waits in nights.")
    add_batch(project, "2026-11-02")
    request = tick(project)
    assert isinstance(request, dg.RunRequest)
    assert request.tags["batches"] == "2026-11-02.parquet"


def test_a_round_publishes_what_waits_and_says_so(
    project: Project, failure_text: Callable[[dg.ExecuteInProcessResult], str]
) -> None:
    """From the batch's file to the readers; after a rollback it refuses, with what to do."""
    published(project)
    add_batch(project, "2026-11-02")
    with dg.DagsterInstance.from_config(str(dagster_home(project.settings))) as project.instance:
        result = project.run_job("tiny__nightly")
        assert result.success
        version = project.deployment.resolve("tiny")
        assert project.deployment.ledger.publications.current("tiny") == version.job_version
        (done,) = result.output_for_node("tiny__nightly_round")
        assert {key: done[key] for key in ("batch", "version", "records", "results", "rows_published")} == {
            "batch": "2026-11-02.parquet",
            "version": version.job_version,
            "records": 2,
            "results": 2,
            "rows_published": 11,
        }
        assert done["verdicts"]["coverage"].startswith("passed: 2 results + 0 dead letters = 2 records")
        assert project.materialized(version) == ["000000"]
        observed = project.instance.fetch_observations(dg.AssetKey(["tiny", "published"]), limit=1).records
        assert observed[0].asset_observation is not None
        assert observed[0].asset_observation.metadata["version"].value == version.job_version
        assert {record_id(4), record_id(11)} == project.stored_ids(version)
        rollback(project.deployment, "tiny")
        refused = project.run_job("tiny__nightly")
        assert not refused.success
        assert "the nightly round waits" in failure_text(refused)


@pytest.mark.parametrize(
    ("nightly", "message"),
    [
        ({"batches": "nights", "cron": "at night"}, r"'at night' is no time as cron has them: five fields"),
        ({"batches": "nights", "cron": "61 * * * *"}, r"'61 \* \* \* \*' is no time as cron has them"),
        ({"batches": "nights", "timezone": "Berlin"}, r"'Berlin' is no time zone"),
    ],
)
def test_a_schedule_that_cannot_be_is_explained(project: Project, nightly: dict[str, str], message: str) -> None:
    """When the job folder is read, on the command line as in Dagster."""
    project.make_job(nightly=nightly)
    with pytest.raises(SpecError, match=message):
        project.definitions()


def test_a_ui_that_is_not_there_costs_a_sentence(project: Project) -> None:
    """Nobody's work stops because a page cannot be told of it."""
    assert reload_ui(project.settings).startswith("No UI is known here")
    project.settings.root.mkdir(exist_ok=True)
    note_ui(project.settings, "http://127.0.0.1:9")
    assert reload_ui(project.settings).startswith("The UI at http://127.0.0.1:9 was not reloaded: ")
