"""Checks and `published` in Dagster: what blocks stops the pointer, and a rollback is a run too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager

from assets_tests.assets.conftest import Project, plain_metadata
from assets_tests.factories import PROMPT, record_id
from batch_assets.core.verdicts import CHECKS
from batch_assets.operations.check import check
from batch_assets.operations.publish import current_verdicts
from batch_assets.storage.plans import RegisteredVersion

GATE_JOB, ROLLBACK_JOB = "tiny__gate_and_publish", "tiny__rollback"
FailureText = Callable[[dg.ExecuteInProcessResult], str]


def complete(project: Project, **keywords: Any) -> RegisteredVersion:
    """A version of the job with every shard sealed."""
    project.make_job(**{"records": 12, "shard_size": 5, **keywords})
    version = project.pin()
    assert project.run(version).success
    return version


def published_metadata(project: Project) -> dict[str, Any]:
    (record,) = project.instance.fetch_materializations(dg.AssetKey(["tiny", "published"]), limit=1).records
    return plain_metadata(record.asset_materialization.metadata)


def test_the_gate_job_checks_and_publishes(project: Project) -> None:
    """All checks pass, the pointer moves, and a second run changes nothing."""
    version = complete(project, golden={record_id(0): "billing"})
    result = project.run_job(GATE_JOB)
    assert result.success
    evaluations = {one.check_name: one for one in result.get_asset_check_evaluations()}
    assert set(evaluations) == set(CHECKS)
    assert project.deployment.ledger.publications.current("tiny") == version.job_version
    assert published_metadata(project)["move"] == "publish"

    assert project.run_job(GATE_JOB).success
    assert published_metadata(project)["move"] == "none: it was published already"
    assert len(project.deployment.ledger.publications.history("tiny")) == 1


def test_published_shows_rows_columns_lineage_sample_and_drift(project: Project) -> None:
    """The metadata that people look for on the asset's page."""
    version = complete(project)
    assert project.run_job(GATE_JOB).success
    metadata = published_metadata(project)
    assert metadata["dagster/row_count"] == 12
    assert metadata["dagster/table_name"] == "published.tiny"
    assert [column.name for column in metadata["dagster/column_schema"].columns][:3] == [
        "record_id",
        "category",
        "summary",
    ]
    lineage = metadata["dagster/column_lineage"].deps_by_column
    assert lineage["record_id"][0].asset_key == lineage["acl"][0].asset_key == dg.AssetKey(["tiny", "snapshot"])
    assert lineage["summary"][0].asset_key == dg.AssetKey(["tiny", version.job_version])
    assert len(metadata["sample"].records) == 5
    assert metadata["drift"].startswith("![drift](data:image/svg+xml;base64,")


def test_a_failed_blocking_check_stops_published(project: Project) -> None:
    """Too many dead letters: `published` does not run, and readers go on seeing what they saw."""
    script = {"records": {record_id(number): {"error": "no"} for number in range(4)}}
    version = complete(project, script=script)
    result = project.run_job(GATE_JOB)
    assert not result.success
    evaluation = next(one for one in result.get_asset_check_evaluations() if one.check_name == "dead_letters")
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    metadata = plain_metadata(evaluation.metadata)
    assert metadata["dead_letters"] == 4
    assert metadata["threshold: rate_max"] == 0.01
    assert metadata["example_record_ids"] == [record_id(number) for number in range(4)]
    assert not [event for event in result.all_events if event.is_step_start and "published" in event.step_key]
    assert project.deployment.ledger.publications.current("tiny") is None
    assert {one.check for one in current_verdicts(project.deployment, version.job_version)} >= {
        "coverage",
        "dead_letters",
    }


def test_a_failed_check_that_does_not_block_is_a_warning(project: Project) -> None:
    """The spec says what blocks; a warning does not stop the publication."""
    script = {"records": {record_id(0): {"error": "no"}}}
    version = complete(project, script=script, gate={"dead_letters": {"rate_max": 0.0, "blocking": False}})
    result = project.run_job(GATE_JOB)
    assert result.success
    evaluation = next(one for one in result.get_asset_check_evaluations() if one.check_name == "dead_letters")
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert project.deployment.ledger.publications.current("tiny") == version.job_version


def test_published_without_checks_is_refused(project: Project, failure_text: FailureText) -> None:
    """Materializing `published` alone does not get around the gate."""
    complete(project)
    result = project.run_job("__ASSET_JOB", asset_selection=[dg.AssetKey(["tiny", "published"])])
    assert not result.success
    assert "coverage: no verdict" in failure_text(result)


def test_an_incomplete_version_fails_its_coverage(project: Project) -> None:
    """Half of the shards are sealed: the check says what is missing."""
    project.make_job(records=12, shard_size=5)
    assert project.run(project.pin(), (0, 1)).success
    result = project.run_job(GATE_JOB)
    coverage = next(one for one in result.get_asset_check_evaluations() if one.check_name == "coverage")
    assert not result.success
    assert not coverage.passed


def test_one_check_can_run_alone(project: Project) -> None:
    """The Checks tab runs what is selected there."""
    version = complete(project)
    key = dg.AssetKey(["tiny", version.job_version])
    job = project.definitions().get_repository_def().get_job("__ASSET_JOB")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={dg.AssetCheckKey(key, "schema")})
    result = subset.execute_in_process(instance=project.instance)
    assert [one.check_name for one in result.get_asset_check_evaluations()] == ["schema"]


def test_running_a_checked_version_again_keeps_its_checks(project: Project) -> None:
    """A backfill from the UI plans the checks too and skips them; the verdicts that hold are shown instead."""
    version = complete(project)
    assert project.run_job(GATE_JOB).success
    key = dg.AssetKey(["tiny", version.job_version])
    names = set(CHECKS) - {"evaluation"}
    checks = {dg.AssetCheckKey(key, name) for name in names}
    again = project.run(version, checks=checks)
    assert again.success
    repeated = {one.check_name: one.passed for one in again.get_asset_check_evaluations()}
    assert repeated == dict.fromkeys(names, True)


def test_rollback_is_a_run(project: Project, failure_text: FailureText) -> None:
    """The job points readers back and leaves the move in the asset's history; at the first version it says so."""
    first = complete(project)
    assert project.run_job(GATE_JOB).success
    refused = project.run_job(ROLLBACK_JOB)
    assert not refused.success
    assert "there is none before it" in failure_text(refused)

    second = complete(project, prompt=PROMPT.replace("Sort", "Put"))
    assert second.job_version != first.job_version
    assert project.run_job(GATE_JOB).success
    assert project.deployment.ledger.publications.current("tiny") == second.job_version
    assert (
        "baseline"
        in {one.check: one.numbers for one in current_verdicts(project.deployment, second.job_version)}["drift"]
    )

    assert project.run_job(ROLLBACK_JOB).success
    assert project.deployment.ledger.publications.current("tiny") == first.job_version
    metadata = published_metadata(project)
    assert (metadata["version"], metadata["move"]) == (first.job_version, "rollback")


def test_an_older_version_can_be_published_by_config(project: Project) -> None:
    """`version` in the launchpad names any version that was checked against what is published now."""
    first = complete(project)
    assert project.run_job(GATE_JOB).success
    complete(project, prompt=PROMPT.replace("Sort", "Put"))
    assert project.run_job(GATE_JOB).success
    check(project.deployment, first)
    config = {"ops": {"tiny__published": {"config": {"version": first.job_version}}}}
    key = dg.AssetKey(["tiny", "published"])
    assert project.run_job("__ASSET_JOB", asset_selection=[key], run_config=config).success
    assert project.deployment.ledger.publications.current("tiny") == first.job_version


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "](javascript:alert(1))", "`" * 8])
def test_record_text_never_becomes_markdown(project: Project, hostile: str) -> None:
    """Ids and answers are plain table cells and JSON, whatever they contain."""
    rows = [
        {"record_id": f"{hostile}{n}", "subject": hostile, "body": "b", "record_class": "c", "acl": hostile}
        for n in range(3)
    ]
    project.make_job(
        records=rows,
        gate={"dead_letters": {"rate_max": 1.0}},
        script={"records": {rows[0]["record_id"]: {"error": hostile}}},
    )
    assert project.run(project.pin()).success
    result = project.run_job(GATE_JOB)
    assert result.success
    events = [event for event in result.all_events if event.event_type_value == "ASSET_MATERIALIZATION"]
    shown = [*events[0].materialization.metadata.values()]
    shown += [value for one in result.get_asset_check_evaluations() for value in one.metadata.values()]
    markdown = [value.value for value in shown if isinstance(value, dg.MarkdownMetadataValue)]
    assert all(hostile not in text for text in markdown)
    assert all(hostile not in (one.description or "") for one in result.get_asset_check_evaluations())


@pytest.mark.case("C67")
def test_dead_letters_within_the_tolerance_are_numbers_not_a_failure(project: Project) -> None:
    """The run is green, every shard is materialized, and the check says how many records were given up."""
    faults = {record_id(n): {"text": "not JSON"} for n in (2, 7)}
    version = complete(project, records=200, script={"records": faults}, gate={"dead_letters": {"rate_max": 0.01}})
    result = project.run_job(GATE_JOB)
    assert result.success
    (check,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "dead_letters"]
    assert check.passed
    assert plain_metadata(check.metadata)["dead_letters"] == 2
    assert project.deployment.ledger.publications.current("tiny") == version.job_version


def test_checks_and_published_say_where_the_report_is(project: Project, tmp_path: Path) -> None:
    """Each verdict and each publication links the page; the link is where Dagster's web server finds it."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as project.instance:
        version = complete(project)
        result = project.run_job(GATE_JOB)
        link = f"/logs/reports/tiny/{version.job_version}/html"
        for evaluation in result.get_asset_check_evaluations():
            assert plain_metadata(evaluation.metadata)["report"] == link
        metadata = published_metadata(project)
        assert metadata["report"] == link
        page = Path(metadata["report_file"]).read_text()
        assert "Published: readers see this version." in page
        logs = project.instance.compute_log_manager
        assert isinstance(logs, LocalComputeLogManager)
        served = Path(str(logs.get_captured_local_path(["reports", "tiny", version.job_version], "html")))
        assert served.read_text() == page
        assert metadata["report_command"].startswith(f"batch-assets report {version.job_version}")


def test_a_report_that_cannot_be_written_stops_nothing(project: Project) -> None:
    """The pointer moves all the same, and the page of `published` says what is wrong."""
    version = complete(project)
    (project.deployment.settings.root / "reports").write_text("in the way")
    assert project.run_job(GATE_JOB).success
    assert project.deployment.ledger.publications.current("tiny") == version.job_version
    assert published_metadata(project)["report"].startswith("not written: Cannot write")
