"""The evaluation as Dagster shows it: its picture, and the pool of a check that runs an engine."""

from __future__ import annotations

import base64
import json

import dagster as dg

from assets_tests.assets.conftest import Project
from assets_tests.factories import record_id
from batch_assets.assets.checks import version_checks
from batch_assets.assets.publication import gate_job_name
from batch_assets.operations.plan import plan
from batch_assets.operations.work import work

JUDGE = {
    "judge.md": "Is it right?\n<!-- record -->\n{{ result }}\n",
    "judge_schema.py": "from pydantic import BaseModel\n\n\nclass Output(BaseModel):\n    right: bool\n",
    "judge.yaml": json.dumps({"records": {record_id(number): {"text": '{"right": true}'} for number in range(6)}}),
}


def test_a_check_with_a_judge_takes_the_gpu_pool_and_shows_the_confusion(project: Project) -> None:
    """It runs an engine inside its step; versions of the judge are no assets of the job."""
    judge = {"score": "right", "min": 0.9, "script": "judge.yaml"}
    gate = {"evaluation": {"accuracy_min": 0.0, "judge": judge}}
    project.make_job(records=6, golden={record_id(0): "bug"}, gate=gate, files=JUDGE)
    version = project.pin()
    plan(project.deployment, version)
    version = project.deployment.ledger.plans.get(version.job_version)
    work(project.deployment, version)
    checks = version_checks(project.settings, project.deployment.job("tiny"), version)
    assert isinstance(checks.node_def, dg.OpDefinition)
    assert checks.node_def.pool == "gpu"
    result = project.run_job(gate_job_name("tiny"))
    (found,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "evaluation"]
    assert found.passed, found.description
    picture = found.metadata["picture: confusion"]
    assert isinstance(picture, dg.MarkdownMetadataValue)
    assert picture.md_str
    head, _, data = picture.md_str.removesuffix(")").partition(",")
    assert head == "![confusion](data:image/svg+xml;base64"
    assert base64.b64decode(data).startswith(b"<svg")
    judged = found.metadata["criteria"].value["judge"]["job_version"]
    assets = project.definitions().get_repository_def().asset_graph.get_all_asset_keys()
    assert [key for key in assets if judged in key.path] == []


def test_a_check_without_a_judge_waits_for_no_pool(project: Project) -> None:
    """Most checks need no accelerator."""
    project.make_job(records=6, golden={record_id(0): "bug"}, gate={"evaluation": {"accuracy_min": 0.0}})
    checks = version_checks(project.settings, project.deployment.job("tiny"), project.pin())
    assert isinstance(checks.node_def, dg.OpDefinition)
    assert checks.node_def.pool is None
