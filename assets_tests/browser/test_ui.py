"""A person's path through the UI: materialize, re-execute, check and publish, and what the pages show."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from assets_tests.browser.ui import REPOSITORY_ROOT, Ui
from assets_tests.factories import PROMPT, make_job, record_id, requests_served, write_script
from assets_tests.waiting import wait_for
from batch_assets.assets.instance import dagster_environment
from batch_assets.assets.reload import note_ui
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.pin import pin
from batch_assets.settings import Settings
from batch_assets.storage.plans import RegisteredVersion

SCREENSHOTS = REPOSITORY_ROOT / "test-artifacts"
RECORDS, SHARDS = 40, 8
PARTITIONS = [f"{shard:06d}" for shard in range(SHARDS)]
SCRIPT = {"requests_log": "requests.jsonl"}
KILLER = {"records": {record_id(27): {"kills_engine": True}}}


class Site:
    """A running UI on a home with two jobs, each with one version."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self.root, self.settings, self.deployment = root, settings, Deployment(settings)
        self.ui = Ui(settings, root / "dagster.log")

    def make(self, name: str, **keywords: Any) -> RegisteredVersion:
        """A job folder and its version; made again, another version of it."""
        make_job(self.root / "jobs", name=name, records=RECORDS, shard_size=5, workers=2, **keywords)
        pinned = pin(self.deployment, self.deployment.job(name))
        return self.deployment.ledger.plans.get(pinned.job_version)

    def newest(self, job: str) -> RegisteredVersion:
        return self.deployment.resolve(job)

    def asset(self, job: str) -> list[str]:
        return [job, self.newest(job).job_version]

    def served(self, job: str) -> list[str]:
        return requests_served(self.root / "jobs" / job / "requests.jsonl")

    def end_of(self, run: str) -> str:
        ended = ("SUCCESS", "FAILURE", "CANCELED")
        return wait_for(
            "end of the run", lambda: status if (status := self.ui.run_status(run)) in ended else "", timeout_s=120
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    (root / "jobs").mkdir()
    site = Site(root, Settings(home=root / "home", jobs=root / "jobs", models=root / "models"))
    try:
        site.make("tickets", script=SCRIPT, golden={record_id(number): "billing" for number in range(10)})
        site.make("flaky", script={**SCRIPT, **KILLER}, engine={"restarts_max": 0})
        site.ui.wait_until_ready()
        yield site
    finally:
        site.ui.close()
        site.deployment.ledger.close()


def test_a_backfill_materializes_every_shard_and_the_gate_publishes(site: Site) -> None:
    """As the UI does it: choose all partitions, wait for the backfill; then run the gate's job."""
    ui, asset = site.ui, site.asset("tickets")
    backfill = ui.materialize_partitions(asset, PARTITIONS)
    wait_for("end of the backfill", lambda: ui.backfill_status(backfill).startswith("COMPLETED"), timeout_s=150)
    assert ui.backfill_status(backfill) == "COMPLETED_SUCCESS"
    assert ui.materialized_partitions(asset) == (SHARDS, SHARDS)
    assert sorted(site.served("tickets")) == [record_id(number) for number in range(RECORDS)]

    assert site.end_of(ui.launch_job("tickets__gate_and_publish")) == "SUCCESS"
    assert site.deployment.ledger.publications.current("tickets") == asset[1]


def test_a_run_from_the_command_line_is_re_executed_in_the_ui(site: Site) -> None:
    """It failed half way; the button finishes it without asking for stored records again."""
    asset = site.asset("flaky")
    command = [sys.executable, "-m", "batch_assets.assets.launch", asset[1]]
    environment = {**dagster_environment(site.settings), "BATCH_ASSETS_EXECUTOR": "in_process"}
    failed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert failed.returncode == 1
    assert b"The engine died" in failed.stdout
    before = site.ui.materialized_partitions(asset)[0]
    assert 0 < before < SHARDS
    served = site.served("flaky")

    write_script(site.root / "jobs" / "flaky", SCRIPT)
    assert site.end_of(site.ui.reexecute(site.ui.latest_run())) == "SUCCESS"
    assert site.ui.materialized_partitions(asset) == (SHARDS, SHARDS)
    assert len(site.served("flaky")) - len(served) <= RECORDS - 5 * before


def test_a_new_version_appears_by_itself(site: Site) -> None:
    """The prompt is edited, the snapshot materialized, and the UI was told to load its definitions anew."""
    old = site.asset("tickets")
    note_ui(site.settings, site.ui.url)  # as `batch-assets ui` does
    (site.root / "jobs" / "tickets" / "prompt.md").write_text(PROMPT.replace("Sort", "Put"))
    assert site.end_of(site.ui.materialize(["tickets", "snapshot"])) == "SUCCESS"
    new = site.asset("tickets")
    assert new != old
    assert site.ui.materialized_partitions(new) == (0, SHARDS)
    assert site.ui.materialized_partitions(old) == (SHARDS, SHARDS)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("lineage", ["snapshot", "published", "VERSION"]),
        ("partitions", [*PARTITIONS, "Materialized"]),
        ("checks", ["coverage", "schema", "drift", "evaluation", "dead_letters", "access_labels", "one_recipe"]),
        ("overview", ["VERSION", "category", "prompt"]),
        ("published", ["Row count", "drift", "sample"]),
    ],
)
def test_pages_show_what_people_look_for(site: Site, browser: webdriver.Chrome, page: str, texts: list[str]) -> None:
    """The names are on the page; the screenshot is kept in test-artifacts/ to be looked at."""
    version = site.deployment.ledger.publications.current("tickets") or site.asset("tickets")[1]
    base = site.ui.url
    address = {
        "lineage": f"{base}/locations/batch_assets/asset-groups/tickets/lineage",
        "partitions": f"{base}/assets/tickets/{version}?view=partitions",
        "checks": f"{base}/assets/tickets/{version}?view=checks",
        "overview": f"{base}/assets/tickets/{version}?view=overview",
        "published": f"{base}/assets/tickets/published?view=overview",
    }[page]
    wanted = [text.replace("VERSION", version) for text in texts]
    browser.get(address)
    try:
        wait_for(f"{wanted} on {address}", lambda: all(text in visible_text(browser) for text in wanted), timeout_s=60)
    finally:
        SCREENSHOTS.mkdir(exist_ok=True)
        browser.save_screenshot(str(SCREENSHOTS / f"ui-{page}.png"))


@pytest.mark.browser
def test_the_report_is_linked_and_comes_from_the_server_of_the_ui(site: Site, browser: webdriver.Chrome) -> None:
    """A browser elsewhere gets the page from the address that it has the UI from."""
    version = site.deployment.ledger.publications.current("tickets")
    browser.get(f"{site.ui.url}/assets/tickets/published?view=overview")
    wanted = f"{site.ui.url}/logs/reports/tickets/{version}/html"
    find = "return [...document.querySelectorAll('a')].map(one => one.href)"
    wait_for(f"link to {wanted}", lambda: wanted in browser.execute_script(find), timeout_s=60)
    with urllib.request.urlopen(wanted, timeout=30) as answer:
        page = answer.read().decode()
    assert page.startswith("<!doctype html>")
    assert f"{version}: report</title>" in page


def visible_text(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return document.body.innerText"))
