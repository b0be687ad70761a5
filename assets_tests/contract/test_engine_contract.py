"""What every engine promises to the worker; see `batch_assets/engine/protocol.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from assets_tests.contract.engines import (
    CONTEXT_TOKENS_MAX,
    CUT_OFF_ID,
    START_DEADLINE_S,
    Answer,
    Harness,
    engine_processes,
    make_harness,
    new_engine,
)
from batch_assets.errors import EngineDied, EngineUnavailable, SpecError

# Importing vLLM warns of many things that are not ours to mend.
vllm_marks = [pytest.mark.engine, pytest.mark.alone, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="session")
def harnesses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Harness]]:
    """One warm engine of each kind for all tests; starting the real one takes half a minute."""
    warm: dict[str, Harness] = {}
    yield warm
    for harness in warm.values():
        harness.engine.shutdown(deadline_s=10)


@pytest.fixture(params=["scripted", pytest.param("vllm", marks=vllm_marks)])
def harness(
    request: pytest.FixtureRequest, harnesses: dict[str, Harness], tmp_path_factory: pytest.TempPathFactory
) -> Harness:
    kind = request.param
    if kind not in harnesses:
        harnesses[kind] = make_harness(kind, tmp_path_factory.mktemp(kind))
        before = handlers()
        harnesses[kind].engine.start(START_DEADLINE_S)
        handlers_over_start[kind] = (before, handlers())
    return harnesses[kind]


handlers_over_start: dict[str, tuple[list[object], list[object]]] = {}  # by engine kind: before, after


def handlers() -> list[object]:
    return [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]


def test_every_request_ends_in_one_valid_answer(harness: Harness) -> None:
    """Each submitted request has exactly one completion, whose text obeys the schema."""
    names = [f"request {number}" for number in range(12)]
    harness.engine.submit([harness.request(name, text=f"Message {name}: where is my bill?") for name in names])
    answers = harness.answers(len(names))
    assert sorted(answers) == sorted(names)
    for answer in answers.values():
        assert (answer.finish_reason, answer.error) == ("stop", None)
        Answer.model_validate_json(answer.text)
        assert answer.prompt_tokens > 0
        assert answer.output_tokens > 0
    assert harness.engine.poll(0.0) == []


def test_requests_may_be_added_while_others_run(harness: Harness) -> None:
    """A second batch is accepted before the first one is answered."""
    harness.engine.submit([harness.request("first")])
    harness.engine.submit([harness.request("second"), harness.request("third")])
    assert sorted(harness.answers(3)) == ["first", "second", "third"]


def test_the_same_request_has_the_same_answer(harness: Harness) -> None:
    """At temperature 0 a request that runs alone is answered the same every time."""
    texts = []
    for name in ("once", "again"):
        harness.engine.submit([harness.request(name, record_id="same record")])
        texts.append(harness.answers(1)[name].text)
    assert texts[0] == texts[1]


def test_a_shared_instruction_is_cached(harness: Harness) -> None:
    """The real engine reports prompt tokens taken from the prefix cache; never more than the prompt has."""
    long_text = "This sentence is long enough to fill whole blocks of the cache. " * 8
    for name in ("fills the cache", "uses the cache"):
        harness.engine.submit([harness.request(name, text=long_text)])
        answer = harness.answers(1)[name]
        assert 0 <= answer.cached_tokens <= answer.prompt_tokens
    assert harness.kind == "scripted" or answer.cached_tokens > 0


def test_output_cut_off_is_not_a_success(harness: Harness) -> None:
    """An answer that reaches the output cap ends with finish reason "length"."""
    harness.engine.submit([harness.request(CUT_OFF_ID, output_tokens_max=3)])
    answer = harness.answers(1)[CUT_OFF_ID]
    assert answer.finish_reason == "length"
    assert answer.output_tokens <= 3


def test_impossible_prompts_are_rejected_one_by_one(harness: Harness) -> None:
    """An empty and an over-long prompt are rejected with a reason; the one beside them is answered."""
    empty = harness.request("empty")
    long = harness.request("long", text="word " * 2 * CONTEXT_TOKENS_MAX)
    object.__setattr__(empty, "prompt_token_ids", ())
    harness.engine.submit([empty, long, harness.request("fine")])
    answers = harness.answers(3)
    assert {name: answer.finish_reason for name, answer in answers.items()} == {
        "empty": "rejected",
        "long": "rejected",
        "fine": "stop",
    }
    assert answers["empty"].error
    assert answers["long"].error


def test_an_aborted_request_is_not_answered(harness: Harness) -> None:
    """After abort only the others are answered, and the aborted id can be used again at once."""
    harness.engine.submit([harness.request(name) for name in ("kept", "dropped", "dropped too")])
    harness.engine.abort(["dropped", "dropped too", "never submitted"])
    assert list(harness.answers(1)) == ["kept"]
    assert harness.engine.poll(0.2) == []
    harness.engine.submit([harness.request("dropped", text="Another message.")])
    assert list(harness.answers(1)) == ["dropped"]


def test_poll_without_work_returns_in_time(harness: Harness) -> None:
    """With nothing in flight poll waits for its timeout, not longer, and returns nothing."""
    before = time.monotonic()
    assert harness.engine.poll(0.3) == []
    assert 0.25 < time.monotonic() - before < 2


def test_start_respects_its_deadline(harness: Harness) -> None:
    """An engine that is not ready in time is unavailable and leaves no process behind."""
    (harness.script.parent / "slow.yaml").write_text("defaults: {start_s: 30}")
    slow = new_engine(harness.kind, harness.script.parent / "slow.yaml")
    running = set(engine_processes())
    with pytest.raises(EngineUnavailable, match="start"):
        slow.start(deadline_s=4.0 if harness.kind == "vllm" else 0.1)  # long enough to have a process by then
    assert set(engine_processes()) == running


def test_an_engine_names_its_processes(harness: Harness) -> None:
    """Whoever has to end the engine from outside knows what to end; a shut down engine has none."""
    running = {process.pid for process in engine_processes()}
    assert set(harness.engine.processes()) <= running
    assert bool(harness.engine.processes()) == (harness.kind == "vllm")
    script = harness.script.parent / "process.yaml"
    script.write_text("defaults: {process: true}")
    another = new_engine(harness.kind, script)
    assert another.processes() == ()
    if harness.kind == "scripted":
        another.start(START_DEADLINE_S)
        (pid,) = another.processes()
        assert psutil.pid_exists(pid)
        another.shutdown(1.0)
        assert another.processes() == ()
        assert not psutil.pid_exists(pid)


def test_death_is_reported_and_survivable(harness: Harness) -> None:
    """When the engine dies, poll and submit raise EngineDied, and a new start answers again."""
    harness.provoke_death()
    with pytest.raises(EngineDied):
        harness.answers(1)
    with pytest.raises(EngineDied):
        harness.engine.submit([harness.request("too late")])
    harness.engine.start(START_DEADLINE_S)
    assert harness.engine.poll(0.0) == []
    harness.engine.submit([harness.request("after the restart")])
    assert harness.answers(1)["after the restart"].finish_reason == "stop"


def test_an_engine_that_does_not_run_says_so(harness: Harness) -> None:
    """Before its start, and after any number of shutdowns, an engine takes no requests."""
    engine = harness.another_engine()
    with pytest.raises(EngineDied):
        engine.submit([harness.request("too early")])
    engine.shutdown(deadline_s=1)
    engine.shutdown(deadline_s=1)
    with pytest.raises(EngineDied):
        engine.poll(0.0)


def test_signal_handlers_stay_as_they_are(harness: Harness) -> None:
    """Signals belong to the worker: a running engine has not touched their handlers."""
    before, after = handlers_over_start[harness.kind]
    assert after == before
    harness.engine.submit([harness.request("quick")])
    harness.answers(1)
    assert handlers() == before


def test_a_schema_that_cannot_be_constrained_is_a_spec_error(harness: Harness) -> None:
    """An impossible schema fails before any record is spent on it."""
    impossible = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "(?=a)b"}},
        "required": ["code"],
    }
    with pytest.raises(SpecError, match="schema"):
        harness.another_engine(json_schema=impossible).start(START_DEADLINE_S)


STARTER = """
import sys
from assets_tests.contract.engines import START_DEADLINE_S, new_engine
from batch_assets.engine.protocol import EngineRequest

if __name__ == "__main__":
    engine = new_engine("vllm", None)
    engine.start(START_DEADLINE_S)
    print("ready", flush=True)
    sys.stdin.readline()
    request = {"request_id": "a", "record_id": "a", "attempt": 1, "prompt_token_ids": (5, 6), "output_tokens_max": 30}
    engine.submit([EngineRequest(**request)])
    print("answers", len(engine.poll(1.0)), flush=True)
    engine.shutdown(deadline_s=2)
"""


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that has started an engine; when told, it sends one request and shuts down."""
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.engine
@pytest.mark.alone
def test_no_engine_process_outlives_a_killed_worker(starter: subprocess.Popen[str]) -> None:
    """SIGKILL of the worker ends all processes of its engine."""
    processes = engine_processes(psutil.Process(starter.pid))
    assert processes
    starter.kill()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []


@pytest.mark.engine
@pytest.mark.alone
def test_a_hung_engine_does_not_hold_its_worker(starter: subprocess.Popen[str]) -> None:
    """With the engine's processes frozen poll returns in time, shutdown kills them, and the worker exits."""
    processes = engine_processes(psutil.Process(starter.pid))
    for process in processes:
        process.suspend()
    output, _ = starter.communicate("go\n", timeout=20)
    assert (output, starter.returncode) == ("answers 0\n", 0)
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == []
