"""Starts worker processes quickly: forks them from a process that has imported everything already.

A worker is a process of its own, with its own pid, signals, connections and threads; only the second that
Python needs to import is saved. Some are started from nothing all the same (`cold`), as a scheduler would.
The nursery has one thread and opens nothing, so that forking is safe. When the runner is gone, it ends
what it has started and then itself.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from assets_tests.chaos import planted
from batch_assets import failpoints
from batch_assets.cli.main import main

_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Order:
    """A process to start."""

    number: int
    arguments: list[str]
    environment: Mapping[str, str]
    log: str
    constants: Mapping[str, float]  # module attributes to replace, as in batch_assets.worker.committer.FLUSH_S
    cold: bool = False
    clock_s: float = 0.0  # how wrong its clock is
    plant: str | None = None  # a bug of planted.py


@dataclass
class Nursery:
    """The runner's end. Use as a context manager, before any thread is started."""

    pids: dict[int, int] = field(default_factory=dict)  # by order number
    ended: dict[int, int] = field(default_factory=dict)  # exit status by pid; negative: the signal
    _unread: bytes = b""

    def __enter__(self) -> Nursery:
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(theirs)
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)

    def start(self, order: Order) -> int:
        """Start a process; returns its pid."""
        self._socket.sendall(json.dumps(asdict(order)).encode() + b"\n")
        while order.number not in self.pids:
            self._hear(wait_s=30.0)
        return self.pids[order.number]

    def status(self, pid: int) -> int | None:
        """The exit status of a process that was started here; None while it runs."""
        self._hear()
        return self.ended.get(pid)

    def _hear(self, wait_s: float = 0.0) -> None:
        self._socket.settimeout(wait_s)
        with contextlib.suppress(BlockingIOError):
            data = self._socket.recv(65536)
            assert data, "the nursery has ended"
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "number" in told:
                self.pids[told["number"]] = told["pid"]
            else:
                self.ended[told["pid"]] = told["status"]


def _serve(link: socket.socket) -> None:
    """The nursery's own loop; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides
    living: set[int] = set()
    status = 0
    try:
        _answer_orders(link, living)
    except BaseException:
        traceback.print_exc()
        status = 1
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    os._exit(status)


def _answer_orders(link: socket.socket, living: set[int]) -> None:
    selector = selectors.DefaultSelector()
    selector.register(link, selectors.EVENT_READ)
    unread = b""
    while True:
        if selector.select(_LOOK_EVERY_S):
            try:
                data = link.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                order = Order(**json.loads(line))
                pid = os.fork()
                if pid == 0:
                    link.close()
                    _become(order)
                living.add(pid)
                link.sendall(json.dumps({"number": order.number, "pid": pid}).encode() + b"\n")
        for pid in list(living):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                living.discard(pid)
                told = {"pid": pid, "status": os.waitstatus_to_exitcode(status)}
                link.sendall(json.dumps(told).encode() + b"\n")


def _become(order: Order) -> None:
    """Run the command as this process; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.environ.update(order.environment)
    if order.cold:
        code = _COLD.format(clock_s=order.clock_s, constants=dict(order.constants), plant=order.plant)
        os.execv(sys.executable, [sys.executable, "-c", code, *order.arguments])
    status = 1
    try:
        prepare(order.constants, order.clock_s, order.plant)
        failpoints._armed = failpoints._parse(os.environ.get(failpoints.VARIABLE, ""))
        sys.argv = ["batch-assets", *order.arguments]
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def prepare(constants: Mapping[str, float], clock_s: float, plant: str | None) -> None:
    """What makes this worker different from one of every day. SIGUSR1 makes it tell where it is."""

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    replace_constants(constants)
    shift_clock(clock_s)
    planted.plant(plant)


def replace_constants(constants: Mapping[str, float]) -> None:
    """Give module constants other values: histories are short, and so are their pauses."""
    for path, value in constants.items():
        module, _, name = path.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, name), path
        setattr(found, name, value)


def shift_clock(seconds: float) -> None:
    """Make this process believe that it is earlier or later: the wall clock as all our modules read it."""
    if not seconds:
        return
    real_time, real_datetime = time.time, datetime.datetime

    class Wrong(real_datetime):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return real_datetime.now(tz) + datetime.timedelta(seconds=seconds)

    time.time = lambda: real_time() + seconds
    for name, module in list(sys.modules.items()):
        if name.startswith("batch_assets") and getattr(module, "datetime", None) is real_datetime:
            module.datetime = Wrong  # type: ignore[attr-defined]


_COLD = """\
import sys
from assets_tests.chaos.nursery import prepare
prepare({constants}, {clock_s}, {plant!r})
from batch_assets.cli.main import main
sys.argv[0] = "batch-assets"
main()
"""
