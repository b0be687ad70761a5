"""A real PostgreSQL server of the tests' own: in a temporary folder, on loopback, stopped by its pid.

Tests take it from the fixture `postgresql` and get a database each. Without PostgreSQL on the machine
they are skipped, except in continuous integration (`CI` is set), where that is a failure.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from assets_tests.waiting import wait_for

_SERVER_USER = "postgres"  # the server refuses to run as root
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # tests end processes, never the machine; what the kernel has been given is kept
    "max_connections": "200",
    "log_min_messages": "warning",
}
MISSING = "PostgreSQL is not installed; `apt-get install postgresql` brings it"


def find_binaries() -> Path | None:
    """The folder of the newest installed server."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


class Server:
    """One server. `restart` ends it in the middle of whatever it does, as a crash would."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        self._user = _SERVER_USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._numbers = itertools.count(1)
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(folder, self._user)
        self._run(
            "initdb", "-D", str(self.data), "--auth=trust", f"--username={_SERVER_USER}", "--no-sync", "-E", "UTF8"
        )

    @property
    def data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        options = {**_SETTINGS, "port": self._port, "unix_socket_directories": self._folder}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries / "postgres"),
                    "-D",
                    str(self.data),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
                **self._as_user(),  # type: ignore[arg-type]
            )
        wait_for("server", self._answers)

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT is the fast shutdown, SIGQUIT the immediate one: no goodbye to anybody."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)

    def restart(self) -> None:
        """Immediate mode: every connection breaks, open transactions are lost, committed ones are not."""
        self.stop(signal.SIGQUIT)
        self.start()

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{_SERVER_USER}@127.0.0.1:{self._port}/{database}"

    @property
    def port(self) -> int:
        return self._port

    def new_database(self, *, template: str = "template0") -> str:
        """Create a database; returns its address."""
        name = f"ledger_{next(self._numbers)}"
        self.administer(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def administer(self, statement: str) -> None:
        with psycopg.connect(self._psycopg_url("postgres"), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def _psycopg_url(self, database: str) -> str:
        return self.url(database).replace("+psycopg", "")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with psycopg.connect(self._psycopg_url("postgres"), connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            capture_output=True,
            text=True,
            cwd=self._folder,
            **self._as_user(),  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr

    def _as_user(self) -> dict[str, object]:
        if os.geteuid() != 0:
            return {}
        entry = pwd.getpwnam(self._user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def running_server() -> Iterator[Server]:
    """Start a server; stop it and remove its folder at the end."""
    binaries = find_binaries()
    if binaries is None:
        raise FileNotFoundError(MISSING)
    # As root the server runs as a user of its own, who has no way into the folders of tests.
    place = "/tmp" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="batch-assets-postgresql-", dir=place))
    try:
        server = Server(binaries, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # nobody reads the folder again, so nothing needs to be written into it
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def server_for_tests() -> Iterator[Server]:
    """The body of the fixture `postgresql`."""
    if find_binaries() is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with running_server() as server:
        yield server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
