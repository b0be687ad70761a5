"""Dagster's webserver and daemon on a temporary home, asked as the browser asks them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from assets_tests.waiting import wait_for
from batch_assets.assets.instance import dagster_environment
from batch_assets.settings import Settings

REPOSITORY_ROOT = Path(__file__).parent.parent.parent
LOCATION, REPOSITORY = "batch_assets", "__repository__"
STOP_S = 5.0  # its whole group is killed afterwards, and nobody reads its home again


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Ui:
    """`dagster dev` with the repository's own workspace, on a loopback port."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log.open("ab")
        workspace = str(REPOSITORY_ROOT / "workspace.yaml")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-w", workspace, "--host", "127.0.0.1", "--port", str(self.port)],
            env=dagster_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that whatever is left of it can be ended as one group
        )

    def wait_until_ready(self) -> None:
        """Until the code location is loaded; fails with Dagster's own words when it does not load."""
        entry = wait_for("code location", self._location, timeout_s=120)
        assert entry["__typename"] == "RepositoryLocation", entry

    def close(self) -> None:
        """Ask it to end, then make sure of its whole process group."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def ask(self, query: str, **variables: Any) -> Any:
        """One GraphQL request; returns its only answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer
        (value,) = answer["data"].values()
        return value

    def _location(self) -> dict[str, Any] | None:
        query = """query { workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError {
            __typename ... on PythonError { message } } } } } }"""
        try:
            (entry,) = self.ask(query)["locationEntries"] or [None]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        return entry["locationOrLoadError"] if entry and entry["loadStatus"] == "LOADED" else None

    # --- what the buttons do ---------------------------------------------------------------------

    def materialize_partitions(self, asset: list[str], partitions: list[str]) -> str:
        """'Materialize' on the page of a partitioned asset; returns the backfill's id."""
        query = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
            __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
        params = {"assetSelection": [{"path": asset}], "partitionNames": partitions, "fromFailure": False, "tags": []}
        return str(self.ask(query, params=params)["backfillId"])

    def backfill_status(self, backfill: str) -> str:
        query = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
            ... on PartitionBackfill { status error { message } } } }"""
        return str(self.ask(query, id=backfill)["status"])

    def materialized_partitions(self, asset: list[str]) -> tuple[int, int]:
        """Materialized and all partitions of an asset, as its node in the graph shows them."""
        query = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
            partitionStats { numMaterialized numPartitions } } } }"""
        stats = self.ask(query, key={"path": asset})["partitionStats"]
        return stats["numMaterialized"], stats["numPartitions"]

    def launch_job(self, job: str) -> str:
        """'Launch run' on a job's page; returns the run's id."""
        return self._launch({"repositoryLocationName": LOCATION, "repositoryName": REPOSITORY, "pipelineName": job})

    def materialize(self, asset: list[str]) -> str:
        """'Materialize' on the page of an asset without partitions; returns the run's id."""
        selector = {
            "repositoryLocationName": LOCATION,
            "repositoryName": REPOSITORY,
            "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": asset}],
            "assetCheckSelection": [],
        }
        return self._launch(selector)

    def reexecute(self, run: str) -> str:
        """'Re-execute from failure' on a run's page; returns the new run's id."""
        query = """mutation($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
            __typename ... on LaunchRunSuccess { run { id } } ... on PythonError { message } } }"""
        return str(self.ask(query, params={"parentRunId": run, "strategy": "FROM_FAILURE"})["run"]["id"])

    def _launch(self, selector: dict[str, Any]) -> str:
        query = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
            __typename ... on LaunchRunSuccess { run { id } } ... on PythonError { message } } }"""
        return str(self.ask(query, params={"selector": selector, "mode": "default", "runConfigData": {}})["run"]["id"])

    def run_status(self, run: str) -> str:
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return str(self.ask(query, id=run)["status"])

    def latest_run(self) -> str:
        return str(self.ask("query { runsOrError(limit: 1) { ... on Runs { results { id } } } }")["results"][0]["id"])
