"""A wire to PostgreSQL that can be cut around a COMMIT, where nobody can tell what has happened.

It can also be slow, or carry nothing for a while without anybody being told.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_COMMIT = b"COMMIT\x00"  # the end of the client's query, and of the server's answer to it


class Proxy:
    """Forwards to a server on loopback. `cut` breaks one connection and names it in `cuts`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._armed: tuple[str, int] | None = None
        self.cuts: list[str] = []
        self.delay_s = 0.0  # for everything that is sent, in both directions
        self._carries = threading.Event()
        self._carries.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self, moment: str, *, nth: int = 1) -> None:
        """Cut the connection that sends the n-th COMMIT from now on.

        `before_commit`: the COMMIT does not reach the server. `after_commit`: its answer does not come back.
        """
        with self._lock:
            self._armed = moment, nth

    def silence(self) -> None:
        """Carry nothing from now on; connections stay open."""
        self._carries.clear()

    def resume(self) -> None:
        """Carry again, what has come meanwhile first."""
        self._carries.set()

    def close(self) -> None:
        self.resume()
        for one in (self._listener, *self._open):
            _break(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:  # the server is away
                    _break(client)
                    continue
                self._open += [client, server]
                answer_is_lost = threading.Event()
                threading.Thread(target=self._ask, args=(client, server, answer_is_lost), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server, answer_is_lost), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, answer_is_lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self._pace()
                moment = self._due() if data.endswith(_COMMIT) else None
                if moment == "before_commit":
                    self.cuts.append(moment)
                    break
                if moment == "after_commit":
                    answer_is_lost.set()
                server.sendall(data)
        _break(client)
        _break(server)

    def _answer(self, client: socket.socket, server: socket.socket, answer_is_lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._pace()
                if answer_is_lost.is_set() and _COMMIT in data:
                    self.cuts.append("after_commit")
                    break
                client.sendall(data)
        _break(client)
        _break(server)

    def _pace(self) -> None:
        self._carries.wait()
        if self.delay_s:
            time.sleep(self.delay_s)

    def _due(self) -> str | None:
        with self._lock:
            if self._armed is None:
                return None
            moment, nth = self._armed
            self._armed = None if nth == 1 else (moment, nth - 1)
            return moment if nth == 1 else None


@contextmanager
def proxy_to(server_port: int) -> Iterator[Proxy]:
    proxy = Proxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()


def _break(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
