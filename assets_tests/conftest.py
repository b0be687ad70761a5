"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assets_tests.homes import Home, temporary_home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """An empty home with a folder for jobs."""
    with temporary_home(tmp_path) as opened:
        yield opened
