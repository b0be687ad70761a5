"""An engine without a model: valid answers at once, and faults where a script asks for them.

For tests, and for trying a job's plumbing before a GPU is paid for. It keeps the same contract as
the real engine. Requests do not wait for each other: each is answered `delay_s` after it came.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from batch_assets.engine.protocol import Completion, EngineInfo, EngineRequest, EngineSetup
from batch_assets.engine.schema_answers import AnswerMaker
from batch_assets.engine.script import Behaviour, load_script
from batch_assets.errors import EngineDied, EngineUnavailable, SpecError

_VERSION = "1"  # changes when the same record id would get another answer
_IN_FLIGHT_MAX = 256
_BYTES_PER_TOKEN = 4
_PROCESS = ("sleep", "infinity")
_AS_USUAL = Behaviour(delay_s=None)


@dataclass(order=True)
class _Due:
    """A request and when it is answered. Ordered by time, then by arrival."""

    at: float  # time.monotonic()
    arrival: int
    request: EngineRequest = field(compare=False)


class ScriptedEngine:
    """Engine with scripted answers. Raises SpecError for a bad script or an unsupported schema."""

    def __init__(self, setup: EngineSetup, worker_name: str, script_path: Path | str | None = None) -> None:
        self._context_tokens_max = setup.context_tokens_max
        self._worker_name = worker_name
        sequences_max = setup.options.get("sequences_max")
        self._in_flight_max = 2 * int(sequences_max) if sequences_max else _IN_FLIGHT_MAX
        self._script = load_script(Path(script_path) if script_path is not None else None)
        self._answers = AnswerMaker(setup.json_schema)
        self._running = False
        self._due: list[_Due] = []  # heap
        self._waiting: dict[str, EngineRequest] = {}  # by request id; aborted ones are gone from here
        self._arrivals = 0
        self._log: int | None = None  # file descriptor of the requests log
        self._process: subprocess.Popen[bytes] | None = None  # stands for the real engine's
        self._hangs = False

    def start(self, deadline_s: float) -> EngineInfo:
        self._stop()
        start_s = self._script.defaults.start_s
        time.sleep(min(start_s, deadline_s))
        if start_s > deadline_s:
            raise EngineUnavailable(
                f"The scripted engine takes {start_s:g} s to start and was given {deadline_s:g} s. Lower "
                "defaults.start_s in the script or raise engine.start_deadline_s."
            )
        self._log = self._open_log()
        if self._script.defaults.process:
            self._process = subprocess.Popen(_PROCESS, start_new_session=True)
        self._running = True
        return EngineInfo(kind="scripted", version=_VERSION, device="cpu", in_flight_max=self._in_flight_max)

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        self._raise_if_dead()
        now = time.monotonic()
        for request in requests:
            self._arrivals += 1
            self._waiting[request.request_id] = request
            behaviour = self._behaviour(request)
            if not behaviour.never_returns:
                delay_s = self._script.defaults.delay_s if behaviour.delay_s is None else behaviour.delay_s
                heapq.heappush(self._due, _Due(now + delay_s, self._arrivals, request))

    def poll(self, timeout_s: float) -> list[Completion]:
        self._raise_if_dead()
        end = time.monotonic() + timeout_s
        while True:
            if found := self._take_due(time.monotonic()):
                return found
            self._raise_if_dead()
            wake_at = min(end, self._due[0].at) if self._due and not self._hangs else end
            if (wait_s := wake_at - time.monotonic()) > 0:
                time.sleep(wait_s)
            elif wake_at == end:
                return []

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def processes(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    def shutdown(self, deadline_s: float) -> None:
        self._stop()

    def _stop(self) -> None:
        self._running = self._hangs = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._due.clear()
        self._waiting.clear()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _raise_if_dead(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if not self._running:
            raise EngineDied("The scripted engine is not running; requests in flight have no answer. Start it again.")

    def _behaviour(self, request: EngineRequest) -> Behaviour:
        return self._script.records.get(request.record_id, _AS_USUAL)

    def _take_due(self, now: float) -> list[Completion]:
        """Answers due by now, up to the first request that kills the engine."""
        found: list[Completion] = []
        while self._due and self._due[0].at <= now and not self._hangs:
            request = self._due[0].request
            if self._waiting.get(request.request_id) is not request:  # aborted
                heapq.heappop(self._due)
                continue
            behaviour = self._behaviour(request)
            if behaviour.kills_engine or behaviour.kills_worker or behaviour.hangs_engine:
                if not found:  # what was answered before is delivered before
                    self._write_log(request)
                    self._misbehave(behaviour)
                return found
            heapq.heappop(self._due)
            del self._waiting[request.request_id]
            found.append(self._answer(request))
            self._write_log(request)
        return found

    def _misbehave(self, behaviour: Behaviour) -> None:
        if behaviour.kills_worker:
            os.kill(os.getpid(), signal.SIGKILL)
        elif behaviour.hangs_engine:
            self._hangs = True
        else:
            self._stop()

    def _answer(self, request: EngineRequest) -> Completion:
        behaviour = self._behaviour(request)
        prompt_tokens = len(request.prompt_token_ids)
        if not 0 < prompt_tokens <= self._context_tokens_max:
            reason = f"the prompt has {prompt_tokens} tokens; 1 to {self._context_tokens_max} are possible"
            return Completion(request_id=request.request_id, text="", finish_reason="rejected", error=reason)
        error = behaviour.error
        if request.attempt <= behaviour.fail_attempts:
            error = f"scripted failure of attempt {request.attempt}"
        if error is not None:
            return Completion(
                request_id=request.request_id, text="", finish_reason="error", error=error, prompt_tokens=prompt_tokens
            )
        text = self._answers.answer(request.record_id) if behaviour.text is None else behaviour.text
        return Completion(
            request_id=request.request_id,
            text=text,
            finish_reason=behaviour.finish_reason,
            prompt_tokens=prompt_tokens,
            output_tokens=math.ceil(len(text.encode(errors="surrogatepass")) / _BYTES_PER_TOKEN),
        )

    def _open_log(self) -> int | None:
        path = self._script.requests_log
        if path is None:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise SpecError(
                f"The requests log {path} cannot be written ({error.strerror}). Correct requests_log in the script."
            ) from error

    def _write_log(self, request: EngineRequest) -> None:
        """One appending write per line, so that lines of several workers never mix."""
        if self._log is None:
            return
        line = {
            "record_id": request.record_id,
            "worker": self._worker_name,
            "time": datetime.now(UTC).isoformat(),
            "attempt": request.attempt,
        }
        os.write(self._log, (json.dumps(line) + "\n").encode())
