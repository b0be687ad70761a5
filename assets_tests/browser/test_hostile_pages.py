"""Hostile ids, labels, answers and errors on the pages of the UI: shown letter by letter, nothing runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from assets_tests.browser.ui import REPOSITORY_ROOT, Ui
from assets_tests.factories import make_job
from assets_tests.hostile.corpus import CHARACTERS, INJECTIONS
from assets_tests.waiting import wait_for
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.pin import pin
from batch_assets.settings import Settings

SCREENSHOTS = REPOSITORY_ROOT / "test-artifacts"
# Pages show the first rows as a sample, so these come first in the order of ids.
SHOWN = tuple(
    INJECTIONS[name]
    for name in ("script", "image with a handler", "svg with a handler", "Markdown image", "Markdown link")
)
DEAD = tuple(f"{text} given up" for text in SHOWN)
OTHERS = tuple(text for text in (*CHARACTERS.values(), *INJECTIONS.values()) if text > max(SHOWN))
PIECES = (
    "<script>document.title",
    "<img src=x onerror=",
    "<svg onload=",
    "![pixel](https://evil",
    "[click](javascript:",
)
COLUMNS = ("record_id", "subject", "body", "record_class", "acl")
WAIT_S = 120.0


class Site:
    """A running UI with a published hostile job, and one that cannot be planned."""

    def __init__(self, root: Path) -> None:
        settings = Settings(home=root / "home", jobs=root / "jobs", models=root / "models")
        (root / "jobs").mkdir()
        self.deployment = Deployment(settings)
        self.ui = Ui(settings, root / "dagster.log")
        answers = {text: {"text": _answer(text)} for text in (*SHOWN, *OTHERS)}
        make_job(
            root / "jobs",
            name="hostile",
            records=[{**dict.fromkeys(COLUMNS, one), "subject": "s"} for one in (*SHOWN, *DEAD, *OTHERS)],
            shard_size=500,
            script={"records": {**answers, **{text: {"error": text} for text in DEAD}}},
            golden=dict.fromkeys(SHOWN, "billing"),
            gate={
                "dead_letters": {"rate_max": 1.0, "cluster_ratio_max": None},
                "drift": {"field": "summary", "psi_max": 100.0},
            },
        )
        make_job(root / "jobs", name="twins", records=[dict.fromkeys(COLUMNS, SHOWN[1])] * 2, script={})
        self.version = pin(self.deployment, self.deployment.job("hostile")).job_version

    def work(self) -> str:
        """Answer, check and publish as the UI does it; returns the run that fails on the twins."""
        ui = self.ui
        ui.wait_until_ready()
        backfill = ui.materialize_partitions(["hostile", self.version], ["000000"])
        wait_for("end of the backfill", lambda: ui.backfill_status(backfill).startswith("COMPLETED"), timeout_s=WAIT_S)
        gate, failing = ui.launch_job("hostile__gate_and_publish"), ui.materialize(["twins", "snapshot"])
        wait_for("publication", lambda: ui.run_status(gate) == "SUCCESS", timeout_s=WAIT_S)
        wait_for("failure", lambda: ui.run_status(failing) == "FAILURE", timeout_s=WAIT_S)
        return failing


def _answer(text: str) -> str:
    return json.dumps({"category": "bug", "summary": text[:200], "entities": [text]})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("hostile-site"))
    try:
        yield site
    finally:
        site.ui.close()
        site.deployment.ledger.close()


@pytest.mark.browser
@pytest.mark.alone  # one UI at a time
@pytest.mark.timeout(600)
def test_nothing_of_a_record_runs_on_a_page(site: Site, browser: webdriver.Chrome) -> None:
    """No script runs, no element or link is made of a text, nothing is fetched; the texts stand there as they are."""
    failing = site.work()
    version = f"{site.ui.url}/assets/hostile/{site.version}"
    pages = {
        "overview": (version, ()),
        "evaluation": (f"{version}?view=checks&checkDetail=evaluation", PIECES),
        "dead-letters": (f"{version}?view=checks&checkDetail=dead_letters", PIECES),
        "drift": (f"{version}?view=checks&checkDetail=drift", PIECES),
        "published": (f"{site.ui.url}/assets/hostile/published", PIECES),
        "failure": (f"{site.ui.url}/runs/{failing}", (PIECES[1],)),
    }
    seen = {name: _look_through(browser, name, address) for name, (address, _) in pages.items()}
    missing = {
        name: [piece for piece in pieces if piece not in seen[name]] for name, (_, pieces) in pages.items() if pieces
    }
    assert not any(missing.values()), missing


def _look_through(browser: webdriver.Chrome, name: str, address: str) -> str:
    """Everything that a page shows, what its 'Show' links open included; each view is harmless."""
    shown = [_open(browser, name, address)]
    _assert_harmless(browser, f"{name}-0")
    for number in range(len(_links(browser))):
        before = _open(browser, name, address)  # anew: no dialog is left open
        browser.execute_script("arguments[0].click()", _links(browser)[number])
        wait_for(f"dialog {number} of {name}", lambda before=before: _text(browser) != before, timeout_s=WAIT_S)
        wait_for(f"content {number} of {name}", lambda: _is_still(browser), timeout_s=WAIT_S)
        shown.append(_text(browser))
        _assert_harmless(browser, f"{name}-{number + 1}")
    return "\n".join(shown)


def _open(browser: webdriver.Chrome, name: str, address: str) -> str:
    browser.get(address)
    wait_for(f"page {name}", lambda: len(_text(browser)) > 300 and _is_still(browser), timeout_s=WAIT_S)
    if name != "overview":
        wait_for(f"details of {name}", lambda: _links(browser) or "RUN_FAILURE" in _text(browser), timeout_s=WAIT_S)
    return _text(browser)


def _is_still(browser: webdriver.Chrome) -> bool:
    moving = "document.getAnimations().some(one => one instanceof CSSTransition && one.playState === 'running')"
    return "Loading" not in _text(browser) and not browser.execute_script(f"return {moving}")


def _links(browser: webdriver.Chrome) -> list[webdriver.remote.webelement.WebElement]:
    """What opens the rest: '[Show JSON]', '[Show Table]', '[Show Markdown]'."""
    found = browser.find_elements(By.XPATH, "//*[not(*) and starts-with(normalize-space(.), '[Show')]")
    return [one for one in found if re.fullmatch(r"\[Show (JSON|Table|Markdown)\]", one.text.strip(), re.IGNORECASE)]


def _text(browser: webdriver.Chrome) -> str:
    """What a person reads, text fields included."""
    fields = "[...document.querySelectorAll('textarea, input')].map(one => one.value).join('\\n')"
    return str(browser.execute_script(f"return document.body.innerText + '\\n' + {fields}"))


_TURNING = r"[\u202a-\u202e\u2066-\u2069]"  # turn what follows around, our own numbers included
# Elements that only a text of a record could have made.
_MADE = (
    "img[src='x'], img[src*='evil.example'], svg[onload], [onerror], a[href^='javascript:'], a[href*='evil.example'],"
    " form[action*='evil.example'], iframe[src*='evil.example']"
)


def _assert_harmless(browser: webdriver.Chrome, view: str) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    browser.save_screenshot(str(SCREENSHOTS / f"hostile-{view}.png"))
    assert browser.execute_script("return window.pwned") is None, view
    assert browser.title != "pwned", view
    made = browser.execute_script(f"return [...document.querySelectorAll({_MADE!r})].map(one => one.outerHTML)")
    assert made == [], view
    assert not re.search(_TURNING, browser.execute_script("return document.body.innerText")), view
    scripts = browser.execute_script("return [...document.scripts].map(one => one.textContent)")
    assert not any("pwned" in text for text in scripts), view
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert not any("evil.example" in name for name in fetched), view
