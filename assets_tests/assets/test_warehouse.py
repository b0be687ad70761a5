"""The resource by which downstream assets read what is published."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import duckdb
import pytest

from assets_tests.assets.conftest import Project
from assets_tests.homes import Home
from assets_tests.publishing import judged, published, worked
from batch_assets.assets.code_location import code_location
from batch_assets.assets.warehouse import PublishedWarehouse, published_warehouse
from batch_assets.errors import InputError, StoreError
from batch_assets.operations.history import history
from batch_assets.operations.publish import rollback


def home_of(project: Project) -> Home:
    return Home(project.deployment, project.root / "jobs")


def test_a_downstream_asset_reads_what_is_published(project: Project) -> None:
    """By the name `warehouse` of our definitions; what it reads is a rebuilt catalog where that was needed."""
    version = published(home_of(project), "Sort")
    project.settings.warehouse.write_bytes(b"damaged")

    @dg.asset(deps=[dg.AssetKey(["tiny", "published"])])
    def counted(warehouse: PublishedWarehouse) -> dg.MaterializeResult[None]:
        with warehouse.get_connection() as connection:
            found = connection.execute("SELECT count(*), max(_job_version) FROM published.tiny").fetchone()
        assert found is not None
        return dg.MaterializeResult(metadata={"rows": found[0], "version": found[1]})

    merged = dg.Definitions.merge(code_location(project.settings), dg.Definitions(assets=[counted]))
    job = merged.get_repository_def().get_job("__ASSET_JOB")
    done = job.get_subset(asset_selection={dg.AssetKey(["counted"])}).execute_in_process(instance=project.instance)
    (event,) = done.asset_materializations_for_node("counted")
    assert (event.metadata["rows"].value, event.metadata["version"].value) == (20, version.job_version)


def test_it_only_reads_takes_no_lock_and_always_closes(project: Project, tmp_path: Path) -> None:
    """A block that raises leaves no connection behind, and publishing goes on beside an open one."""
    warehouse = published_warehouse(project.settings)
    with pytest.raises(StoreError, match="Nothing is published"), warehouse.get_connection():
        pass
    first = published(home_of(project), "Sort")
    with pytest.raises(ZeroDivisionError), warehouse.get_connection() as connection:
        raise ZeroDivisionError
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")
    limited = PublishedWarehouse(database=str(project.settings.warehouse), connection_config={"threads": 1})
    with limited.get_connection() as connection:
        assert connection.execute("SELECT current_setting('threads')").fetchone() == (1,)
        second = published(home_of(project), "Put")
        seen = "SELECT DISTINCT _job_version FROM published.tiny"
        assert connection.execute(seen).fetchall() == [(first.job_version,)]
        with warehouse.get_connection() as another:
            assert another.execute(seen).fetchall() == [(second.job_version,)]
        with pytest.raises(duckdb.Error, match="read-only"):
            connection.execute("DROP VIEW published.tiny")
    other = PublishedWarehouse(database=str(tmp_path / "other.duckdb"))
    with pytest.raises(InputError, match="is no warehouse of ours"), other.get_connection():
        pass


def test_a_step_that_is_tried_again_publishes_once_and_an_override_is_recorded(project: Project) -> None:
    """The publish id is that of the run: whatever others have done since, the second try moves nothing."""
    home = home_of(project)
    first = judged(home, worked(home, "Sort"), failed=["drift"])
    key, run_id = dg.AssetKey(["tiny", "published"]), "0d5a3f7e-1111-4222-8333-444455556666"
    config = {"ops": {"tiny__published": {"config": {"version": first.job_version, "override": "a new season"}}}}

    def materialize() -> dg.ExecuteInProcessResult:
        return project.run_job("__ASSET_JOB", asset_selection=[key], run_config=config, run_id=run_id)

    assert materialize().success
    second = published(home, "Put")
    project.instance.delete_run(run_id)
    again = materialize()
    assert again.success
    (event,) = again.asset_materializations_for_node("tiny__published")
    assert event.metadata["version"].value == second.job_version
    moves = history(home.deployment, "tiny")
    assert [(move["to"], move["publication_id"][:8]) for move in moves][1] == (first.job_version, "dagster:")
    assert moves[1]["override"]["reason"] == "a new season"
    rollback(home.deployment, "tiny")
    assert len(history(home.deployment, "tiny")) == 3
