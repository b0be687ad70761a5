"""Dagster runs started from the command line, in processes of their own, and what happens when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import dagster as dg
import pytest

from assets_tests.assets.conftest import Project
from assets_tests.factories import PROMPT, record_id, write_script
from assets_tests.waiting import wait_for
from batch_assets.assets.instance import dagster_environment, dagster_home
from batch_assets.assets.launch import RunFailed, launch_checks, launch_gate, launch_publish
from batch_assets.assets.requests import execute_request
from batch_assets.errors import GateError
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.worker.identity import pid_of

RECORDS, SHARD_SIZE, SHARDS = 60, 5, 12
# Two shards are in the engine at a time, so a run takes about five seconds and can be met half done.
SLOW = {"requests_log": "requests.jsonl", "defaults": {"delay_s": 0.8}}
FAST = {"requests_log": "requests.jsonl"}


class Launched:
    """`python -m batch_assets.assets.launch` as a child process."""

    def __init__(self, project: Project, *arguments: str, executor: str) -> None:
        self.project = project
        environment = {**dagster_environment(project.settings), "BATCH_ASSETS_EXECUTOR": executor}
        self.log = (project.root / "launch.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "batch_assets.assets.launch", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
        )

    def finish(self, timeout_s: float = 90.0) -> tuple[int, str]:
        """Exit status and what it said."""
        said, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, said.decode().strip()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.log.close()


class Launcher(Protocol):
    """Type of the fixture."""

    def __call__(self, *arguments: str, executor: str = "in_process") -> Launched: ...


@pytest.fixture
def launch(project: Project) -> Iterator[Launcher]:
    started: list[Launched] = []

    def start(*arguments: str, executor: str = "in_process") -> Launched:
        started.append(Launched(project, *arguments, executor=executor))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def stored_instance(project: Project) -> Iterator[dg.DagsterInstance]:
    """The instance that launched runs write to."""
    with dg.DagsterInstance.from_config(str(dagster_home(project.settings))) as instance:
        project.instance = instance
        yield instance


def worker_pid(project: Project, version: RegisteredVersion) -> int | None:
    workers = project.deployment.ledger.progress.of(version.job_version).workers
    return pid_of(workers[0]) if workers else None


def completed(project: Project, version: RegisteredVersion) -> int:
    return project.deployment.ledger.progress.of(version.job_version).shards["completed"]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_dies_is_replaced_within_the_run(
    project: Project, launch: Launcher, stored_instance: dg.DagsterInstance, number: signal.Signals
) -> None:
    """The step is retried, each shard is reported once, and no stored record is asked for again."""
    project.make_job(records=RECORDS, shard_size=SHARD_SIZE, script=SLOW)
    version = project.pin()
    run = launch(version.job_version, executor="multiprocess")
    wait_for("sealed shard", lambda: completed(project, version) >= 2)
    pid = wait_for("worker", lambda: worker_pid(project, version))
    assert pid != run.process.pid
    os.kill(pid, number)
    wait_for("end of the worker", lambda: is_gone(pid))
    stored, served = project.stored_ids(version), project.served()

    assert run.finish() == (0, "")
    assert project.materialized(version) == [f"{shard:06d}" for shard in range(SHARDS)]
    again = project.served()[len(served) :]
    assert not stored & set(again)
    assert project.stored_ids(version) == {record_id(number) for number in range(RECORDS)}
    assert max(Counter(again).values()) == 1
    (last,) = stored_instance.get_runs(limit=1)
    retries = stored_instance.all_logs(last.run_id, of_type=dg.DagsterEventType.STEP_UP_FOR_RETRY)
    assert len(retries) == 1


def test_a_killed_run_takes_its_workers_along_and_is_closed_by_the_next(
    project: Project, launch: Launcher, stored_instance: dg.DagsterInstance
) -> None:
    """An orphaned step drains by itself; the run that looked alive is marked failed, and a new one finishes."""
    project.make_job(records=RECORDS, shard_size=SHARD_SIZE, script=SLOW)
    version = project.pin()
    run = launch(version.job_version, executor="multiprocess")
    wait_for("sealed shard", lambda: completed(project, version) >= 1)
    pid = wait_for("worker", lambda: worker_pid(project, version))
    run.process.kill()
    run.process.wait()
    wait_for("end of the orphan", lambda: is_gone(pid))
    assert project.deployment.ledger.progress.of(version.job_version).shards["leased"] == 0
    stored, served = project.stored_ids(version), project.served()
    (killed,) = stored_instance.get_runs(limit=1)
    assert killed.status is dg.DagsterRunStatus.STARTED

    write_script(project.root / "jobs" / "tiny", FAST)
    assert launch(version.job_version).finish() == (0, "")
    after = stored_instance.get_run_by_id(killed.run_id)
    assert after is not None
    assert after.status is dg.DagsterRunStatus.FAILURE
    assert not stored & set(project.served()[len(served) :])
    assert set(project.materialized(version)) == {f"{shard:06d}" for shard in range(SHARDS)}


@pytest.mark.parametrize("executor", ["in_process", "multiprocess"])
def test_the_end_of_stdin_drains_and_cancels(
    project: Project, launch: Launcher, stored_instance: dg.DagsterInstance, executor: str
) -> None:
    """Whoever started the run goes away: shards are handed back, and the run counts as canceled, not as failed."""
    project.make_job(records=RECORDS, shard_size=SHARD_SIZE, script=SLOW)
    version = project.pin()
    run = launch(version.job_version, "--tie-to-stdin", executor=executor)
    wait_for("sealed shard", lambda: completed(project, version) >= 1)
    status, _ = run.finish()  # closes stdin
    assert status == 1
    progress = project.deployment.ledger.progress.of(version.job_version)
    assert progress.shards["leased"] == 0
    assert 0 < progress.results < RECORDS
    (last,) = stored_instance.get_runs(limit=1)
    assert last.status is dg.DagsterRunStatus.CANCELED


def test_a_failed_run_says_why_in_one_paragraph(project: Project, launch: Launcher) -> None:
    """Exit status 1 and our own words on stdout, no traceback."""
    script = {"records": {record_id(3): {"kills_engine": True}}}
    project.make_job(records=10, shard_size=5, script=script, engine={"restarts_max": 0})
    version = project.pin()
    status, said = launch(version.job_version).finish()
    assert status == 1
    assert said.startswith("The engine died 1 times")
    assert "Traceback" not in said


def test_a_range_that_does_not_exist_is_bad_input(project: Project, launch: Launcher) -> None:
    """Exit status 2, naming the shards there are."""
    project.make_job(records=10, shard_size=5)
    version = project.pin()
    status, said = launch(version.job_version, "--shards", "1-2").finish()
    assert status == 2
    assert "has the shards 0 to 1; 1-2 is not a range" in said


def test_checks_and_publication_run_in_dagster_and_answer_in_ours(
    project: Project, stored_instance: dg.DagsterInstance
) -> None:
    """What the command line launches shows up in Dagster; a refusal is a GateError with its reasons."""
    project.make_job(records=10, shard_size=5)
    version = project.pin()
    with pytest.raises(GateError) as refused:
        launch_gate(project.deployment, version)
    assert any(reason.startswith("coverage:") for reason in refused.value.reasons)
    project.run(version)
    verdicts = launch_checks(project.deployment, version)
    asked = ("coverage", "schema", "drift", "dead_letters", "access_labels", "one_recipe")
    assert {one.check: one.passed for one in verdicts} == dict.fromkeys(asked, True)
    launch_publish(project.deployment, version)
    assert project.deployment.ledger.publications.current("tiny") == version.job_version
    assert stored_instance.fetch_materializations(dg.AssetKey(["tiny", "published"]), limit=5).records


def test_an_older_version_goes_through_its_own_checks(
    project: Project, stored_instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's job is of the newest version; any other is checked and published in two runs."""
    monkeypatch.setenv("DAGSTER_HOME", str(dagster_home(project.settings)))
    project.make_job(records=10, shard_size=5)
    older = project.pin()
    project.make_job(records=10, shard_size=5, prompt=PROMPT.replace("Sort", "Put"))
    newer = project.pin()
    assert execute_request(project.settings, older.job_version, "shards", None, None) is None
    assert execute_request(project.settings, older.job_version, "gate", None, None) is None
    assert project.deployment.ledger.publications.current("tiny") == older.job_version
    problem = execute_request(project.settings, newer.job_version, "gate", None, None)
    assert problem is not None
    assert "coverage" in problem
    assert project.deployment.ledger.publications.current("tiny") == older.job_version
    snapshots = stored_instance.fetch_materializations(dg.AssetKey(["tiny", "snapshot"]), limit=5).records
    assert len(snapshots) == 2


def test_a_check_that_cannot_be_made_is_not_a_verdict(project: Project, stored_instance: dg.DagsterInstance) -> None:
    """A snapshot file that is gone is the run's problem, told as it is."""
    job = project.make_job(records=10, shard_size=5)
    version = project.pin()
    (job / "records.parquet").unlink()
    with pytest.raises(RunFailed, match=r"records\.parquet"):
        launch_checks(project.deployment, version)
