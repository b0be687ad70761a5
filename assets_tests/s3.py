"""S3 servers on loopback: moto in this process, SeaweedFS in one of its own, and a wire that loses answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from assets_tests.waiting import wait_for

BUCKET = "results"
SECRET = "a-secret-that-nobody-sees"


def use(monkeypatch: pytest.MonkeyPatch, port: int, *, secret: str = SECRET) -> None:
    """Make a server on loopback the one that the usual variables name."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@contextmanager
def moto_server() -> Iterator[int]:
    """A moto server with the bucket; gives its port.

    moto looks whether a key exists and stores it in two steps, so that on a busy machine two of several
    writers can win. S3 does not let them, so here one request is served at a time.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: Any, start_response: Any) -> list[bytes]:
        with lock:
            return list(moto(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        bucket = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket).close()
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def seaweedfs_server(folder: Path) -> Iterator[int]:
    """A SeaweedFS server that keeps its data in `folder`; gives its port. It makes buckets when they are written to."""
    keys = folder / "keys.json"
    credentials = [{"accessKey": "tester", "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List"]
    keys.write_text(json.dumps({"identities": [{"name": "tester", "credentials": credentials, "actions": actions}]}))
    roles = ("master", "volume", "filer", "s3")
    ports = dict(
        zip([f"{role}{kind}" for role in roles for kind in (".port", ".port.grpc")], _free_ports(8), strict=True)
    )
    command = [
        Path(sys.executable).with_name("weed"),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
    ]
    command += [
        "-filer",
        "-s3",
        f"-s3.config={keys}",
        "-s3.iam=false",
        "-volume.max=30",
        "-master.volumeSizeLimitMB=64",
    ]
    command += ["-master.telemetry=false", *(f"-{name}={port}" for name, port in ports.items())]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            wait_for("SeaweedFS", lambda: process.poll() is not None or _answers(ports["s3.port"]))
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            yield ports["s3.port"]
        finally:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def _answers(port: int) -> bool:
    """Once it refuses somebody without a signature, it knows its keys and can store."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 403
    except OSError:
        return False
    return False


class Wire:
    """Forwards to a server. `lose` breaks the connection of the next writes after they had their effect."""

    def __init__(self, server_port: int, *, ignores: tuple[str, ...] = ()) -> None:
        self.lost: list[str] = []  # "METHOD path" of the answers that did not come back
        self.sent = 0  # bytes of answers
        self._to_lose: list[str] = []
        self._to_refuse: list[str] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, server_port, ignores))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def lose(self, *methods: str) -> None:
        """Lose the answer to the next successful request of each: a method, or one with a part of its address."""
        self._to_lose += methods

    def refuse(self, *methods: str) -> None:
        """Answer the next request of each of these methods with 409, as S3 does when another write is under way."""
        self._to_refuse += methods

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def loses(self, method: str, path: str) -> bool:
        with self._lock:
            due = next(
                (
                    one
                    for one in self._to_lose
                    if f"{method} {path}".startswith(one.split("?")[0]) and one.partition("?")[2] in path
                ),
                None,
            )
            if due is None:
                return False
            self._to_lose.remove(due)
            self.lost.append(f"{method} {path.partition('?')[0]}")
            return True

    def refuses(self, method: str) -> bool:
        with self._lock:
            if method not in self._to_refuse:
                return False
            self._to_refuse.remove(method)
            return True


def _handler(wire: Wire, server_port: int, ignores: tuple[str, ...]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if wire.refuses(self.command):
                self._conflict()
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ignores}
            server = http.client.HTTPConnection("127.0.0.1", server_port, timeout=30)
            try:
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                data = answer.read()
            finally:
                server.close()
            if answer.status < 300 and wire.loses(self.command, self.path):
                self.close_connection = True
                return
            wire.sent += len(data)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "date", "server"}:
                    self.send_header(name, value)
            if answer.getheader("Content-Length") is None:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _conflict(self) -> None:
            data = b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again.</Message></Error>"
            self.send_response(409)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def wire_to(server_port: int, *, ignores: tuple[str, ...] = ()) -> Iterator[Wire]:
    """A wire, possibly to a server that seems not to know some headers."""
    wire = Wire(server_port, ignores=ignores)
    try:
        yield wire
    finally:
        wire.close()
