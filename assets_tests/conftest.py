"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets_tests.homes import Home, temporary_home
from assets_tests.postgresql import Server, server_for_tests

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30  # the folders of a run take less than one at a time


def pytest_configure() -> None:
    """Temporary folders lie in memory where there is room: every commit of SQLite waits for the disk.

    Tests end processes, never the machine; what the kernel has been given is kept here as well.
    """
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """An empty home with a folder for jobs."""
    with temporary_home(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server of this test run."""
    yield from server_for_tests()


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty ledger database, once on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.new_database()
