"""What the code location shows: every job folder, the right versions, and errors in our own words."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._core.definitions.metadata.metadata_value import CodeLocationReconstructionMetadataValue
from dagster._core.definitions.repository_definition import RepositoryLoadData
from dagster.components.testing import create_defs_folder_sandbox

from assets_tests.assets.conftest import Project
from assets_tests.factories import PROMPT
from batch_assets.assets import BatchInferenceJob
from batch_assets.assets.code_location import code_location
from batch_assets.assets.shown import METADATA_KEY, NEWEST_SHOWN
from batch_assets.definitions import defs
from batch_assets.errors import SpecError


def keys(definitions: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in definitions.get_repository_def().asset_graph.get_all_asset_keys()}


def pin_another(project: Project, number: int) -> str:
    project.make_job(records=3, prompt=PROMPT.replace("Sort", f"Sort ({number})"))
    return project.pin().job_version


def reconstructing(shown: dict[str, list[str]] | None = None) -> DefinitionsLoadContext:
    """How a step process loads the code location: with the choice of the process that started the run."""
    metadata = {} if shown is None else {METADATA_KEY: CodeLocationReconstructionMetadataValue(json.dumps(shown))}
    return DefinitionsLoadContext(
        DefinitionsLoadType.RECONSTRUCTION, RepositoryLoadData(reconstruction_metadata=metadata)
    )


def test_a_job_without_versions_can_be_pinned_from_the_graph(project: Project) -> None:
    """A fresh home shows snapshot and published; materializing the snapshot makes the first version."""
    project.make_job(records=7, shard_size=5)
    assert keys(defs()) == {"tiny/snapshot", "tiny/published"}
    result = project.run_job("__ASSET_JOB", asset_selection=[dg.AssetKey(["tiny", "snapshot"])])
    assert result.success
    (version,) = project.deployment.ledger.plans.list("tiny")
    assert version.planned
    assert keys(defs()) == {"tiny/snapshot", f"tiny/{version.job_version}", "tiny/published"}
    metadata = result.asset_materializations_for_node("tiny__snapshot")[0].metadata
    assert (metadata["version"].value, metadata["is_new"].value) == (version.job_version, True)
    assert (metadata["dagster/row_count"].value, metadata["shards"].value) == (7, 2)


def test_lineage_runs_from_snapshot_through_the_newest_version_to_published(project: Project) -> None:
    """Older versions hang on the snapshot too, but readers come after the newest one."""
    project.make_job(records=7, shard_size=5)
    old = project.pin().job_version
    new = pin_another(project, 1)
    graph = project.definitions().get_repository_def().asset_graph
    published = graph.get(dg.AssetKey(["tiny", "published"]))
    assert published.parent_keys == {dg.AssetKey(["tiny", new])}
    for version in (old, new):
        node = graph.get(dg.AssetKey(["tiny", version]))
        assert node.parent_keys == {dg.AssetKey(["tiny", "snapshot"])}
        assert node.group_name == "tiny"


def test_a_version_has_one_partition_per_shard_and_tells_its_recipe(project: Project) -> None:
    """Partitions, description, prompt and columns of the definition."""
    project.make_job(records=12, shard_size=5, prompt=PROMPT + "\n```\nnot a fence\n```\n")
    version = project.pin()
    node = project.definitions().get_repository_def().asset_graph.get(dg.AssetKey(["tiny", version.job_version]))
    assert node.partitions_def is not None
    assert node.partitions_def.get_partition_keys() == ["000000", "000001", "000002"]
    assert "12 records in 3 shards of 5" in (node.description or "")
    assert node.metadata["prompt"].value.startswith("````text\n")
    columns = {column.name: column for column in node.metadata["dagster/column_schema"].columns}
    assert "isin(['billing', 'bug', 'question'])" in columns["category"].constraints.other
    assert columns["record_id"].constraints.unique
    assert columns["acl"].description == "access label of the record"


def test_the_newest_versions_are_shown_and_the_published_one(project: Project) -> None:
    """Old versions leave the graph, unless readers see them."""
    project.make_job(records=3)
    first = project.pin()
    assert project.run(first).success
    assert project.run_job("tiny__gate_and_publish").success
    rest = [pin_another(project, number) for number in range(NEWEST_SHOWN + 1)]
    shown = keys(project.definitions())
    assert f"tiny/{first.job_version}" in shown
    assert f"tiny/{rest[0]}" not in shown
    assert {f"tiny/{version}" for version in rest[1:]} <= shown


def test_a_running_step_finds_the_version_that_it_was_started_for(project: Project) -> None:
    """Versions pinned during a run do not push the run's own version out of its graph."""
    project.make_job(records=3)
    first = project.pin().job_version
    for number in range(NEWEST_SHOWN + 1):
        pin_another(project, number)
    with DefinitionsLoadContext.scoped(reconstructing({"tiny": [first]})):
        assert keys(code_location(project.settings)) == {"tiny/snapshot", f"tiny/{first}", "tiny/published"}


def test_a_broken_folder_is_one_error_that_names_it(project: Project) -> None:
    """The code location refuses to load, in the words of the spec's own check."""
    job = project.make_job(shards_size=5)
    with pytest.raises(SpecError, match=r"defs\.yaml: Unknown key 'shards_size'.*did you mean 'shard_size'") as caught:
        code_location(project.settings)
    assert str(job / "defs.yaml") in str(caught.value)


def test_a_broken_folder_does_not_end_the_runs_of_other_jobs(project: Project) -> None:
    """A step process loads what it can; only its own job matters to it."""
    project.make_job(name="good")
    project.make_job(name="broken", shards_size=5)
    with DefinitionsLoadContext.scoped(reconstructing()):
        assert keys(code_location(project.settings)) == {"good/snapshot", "good/published"}


def test_an_edited_version_file_does_not_hide_the_others(project: Project) -> None:
    """Its page says what is wrong, and running it is refused."""
    project.make_job(records=3)
    edited = project.pin()
    other = pin_another(project, 1)
    path = project.deployment.objects.path(project.deployment.version_files.key("tiny", edited.job_version))
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"shard_size": 5', '"shard_size": 4'))
    graph = project.definitions().get_repository_def().asset_graph
    assert f"tiny/{other}" in keys(project.definitions())
    assert "cannot be run" in (graph.get(dg.AssetKey(["tiny", edited.job_version])).description or "")
    assert not project.run(edited, (0, 0)).success


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster's own loader uses a beta class of its own
def test_defs_yaml_is_a_dagster_component(project: Project) -> None:
    """Dagster's own loader builds the same definitions from the same file."""
    job = project.make_job(records=3)
    version = project.pin()
    contents = yaml.safe_load((job / "defs.yaml").read_text())
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=BatchInferenceJob, defs_yaml_contents=contents)
        copy_beside(job, path)
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
            assert isinstance(component, BatchInferenceJob)
            assert keys(definitions) == {"tiny/snapshot", f"tiny/{version.job_version}", "tiny/published"}


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_dagster_s_loader_reports_errors_in_our_words(project: Project) -> None:
    """A wrong key in a component file is named with the valid ones, also by Dagster's tools."""
    job = project.make_job(shards_size=5)
    contents = yaml.safe_load((job / "defs.yaml").read_text())
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=BatchInferenceJob, defs_yaml_contents=contents)
        copy_beside(job, path)
        with pytest.raises(Exception, match=r".*") as caught, sandbox.load_component_and_build_defs(defs_path=path):
            pass
        assert "Unknown key 'shards_size'" in "".join(causes(caught.value))


def test_dagster_s_tools_see_the_real_schema() -> None:
    """Editors and `dg` complete the keys of the job spec, though Dagster does not enforce them."""
    schema = BatchInferenceJob.get_model_cls().model_json_schema()
    properties = schema.get("properties") or schema["$defs"]["JobSpec"]["properties"]
    assert {"job", "snapshot", "model", "prompt", "decoding", "gate", "workers"} <= properties.keys()
    assert "published all at once" in (BatchInferenceJob.get_spec().description or "")


def copy_beside(job: Path, target: Path) -> None:
    for source in job.iterdir():
        if source.name != "defs.yaml":
            (target / source.name).write_bytes(source.read_bytes())


def causes(error: BaseException | None) -> list[str]:
    return [] if error is None else [str(error), *causes(error.__cause__ or error.__context__)]
