"""The engines that pass the contract suite, each with what a test needs to drive it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field

from batch_assets.engine.encoder import ScriptedEncoder, TokenizerEncoder
from batch_assets.engine.hardware import processor_dtype
from batch_assets.engine.protocol import Completion, Engine, EngineRequest, EngineSetup
from batch_assets.engine.scripted import ScriptedEngine
from batch_assets.engine.vllm_engine import VllmEngine
from batch_assets.settings import Settings

CONTEXT_TOKENS_MAX = 400
START_DEADLINE_S = 240
ANSWER_DEADLINE_S = 120
INSTRUCTION = "Say in JSON which team a message is for, and repeat it in a few words."
CUT_OFF_ID = "cut-off"
KILLER_ID = "killer"
SCRIPT = f"""
records:
  {CUT_OFF_ID}: {{finish_reason: length, text: '{{"te'}}
  {KILLER_ID}: {{kills_engine: true}}
"""


class Answer(BaseModel):
    """A small schema, so that an answer takes few tokens."""

    model_config = ConfigDict(extra="forbid")

    team: Literal["sales", "support"]
    words: str = Field(min_length=1, max_length=30)


@dataclass
class Harness:
    """One engine under test. `engine` is started and has nothing in flight."""

    kind: Literal["scripted", "vllm"]
    engine: Engine
    encoder: ScriptedEncoder | TokenizerEncoder
    script: Path

    def request(
        self, name: str, *, text: str = "Please call me back.", output_tokens_max: int = 80, record_id: str = ""
    ) -> EngineRequest:
        return EngineRequest(
            request_id=name,
            record_id=record_id or name,
            attempt=1,
            prompt_token_ids=self.encoder.encode(text),
            output_tokens_max=output_tokens_max,
        )

    def answers(self, count: int) -> dict[str, Completion]:
        """The next `count` completions by request id; fails when one id comes twice or they do not come."""
        found: dict[str, Completion] = {}
        end = time.monotonic() + ANSWER_DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < end, f"only {sorted(found)} were answered"
            for completion in self.engine.poll(1.0):
                assert completion.request_id not in found
                found[completion.request_id] = completion
        return found

    def provoke_death(self) -> None:
        """Put a request in flight during which the engine dies."""
        self.engine.submit([self.request("in flight when it dies", record_id=KILLER_ID)])
        if self.kind == "vllm":
            for process in engine_processes():
                process.kill()

    def another_engine(self, **changes: object) -> Engine:
        """A second engine of the same kind, not started."""
        return new_engine(self.kind, self.script, **changes)


def new_engine(kind: Literal["scripted", "vllm"], script: Path, **changes: object) -> Engine:
    model_dir = Settings().models.expanduser() / "smollm2-135m-instruct"
    values: dict[str, object] = {
        "model_dir": str(model_dir),
        "dtype": processor_dtype(),
        "quantization": None,
        "context_tokens_max": CONTEXT_TOKENS_MAX,
        "seed": 0,
        "temperature": 0.0,
        "stop": (),
        "json_schema": Answer.model_json_schema(),
    }
    setup = EngineSetup(**(values | changes))  # type: ignore[arg-type]
    return VllmEngine(setup) if kind == "vllm" else ScriptedEngine(setup, "contract", script)


def make_harness(kind: Literal["scripted", "vllm"], folder: Path) -> Harness:
    script = folder / "script.yaml"
    script.write_text(SCRIPT)
    engine = new_engine(kind, script)
    if kind == "scripted":
        return Harness(kind, engine, ScriptedEncoder(instruction=INSTRUCTION), script)
    model_dir = Settings().models.expanduser() / "smollm2-135m-instruct"
    encoder = TokenizerEncoder(model_dir, instruction=INSTRUCTION, prompt_format="chat")
    return Harness(kind, engine, encoder, script)


def engine_processes(of: psutil.Process | None = None) -> list[psutil.Process]:
    """The processes that vLLM computes in, below a process (by default this one)."""
    descendants = (of or psutil.Process()).children(recursive=True)
    return [process for process in descendants if "VLLM" in " ".join(process.cmdline()[:1])]
