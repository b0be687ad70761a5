"""The browser, and what happens without one.

On a machine with CI=true a missing browser fails the browser tests: there, they must run. Elsewhere
they are left out, and the end of the test report says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
HAS_BROWSER = CHROMIUM is not None and CHROMEDRIVER is not None
IS_CI = os.environ.get("CI", "").lower() == "true"
HINT = "install Chromium and its driver, on Debian with `apt-get install chromium chromium-driver`"
_left_out: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if HAS_BROWSER or IS_CI:
        return
    browser = [item for item in items if item.get_closest_marker("browser")]
    _left_out.extend(item.nodeid for item in browser)
    config.hook.pytest_deselected(items=browser)
    items[:] = [item for item in items if item not in browser]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        terminalreporter.write_line(
            f"No Chromium here: {len(_left_out)} browser tests were left out; {HINT}.", yellow=True
        )


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """A fresh headless Chromium that talks to nobody but the page under test."""
    if not HAS_BROWSER:
        pytest.fail(f"CI=true asks for the browser tests, but there is no Chromium: {HINT}.")
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--window-size=1600,1000",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(executable_path=str(CHROMEDRIVER)))
    try:
        yield driver
    finally:
        driver.quit()
