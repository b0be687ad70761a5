"""Choosing the engine and the encoder that a version and a spec ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batch_assets.core.spec import EngineSpec
from batch_assets.core.version import JobVersion, ModelPin
from batch_assets.engine.encoder import PromptFormat, ScriptedEncoder, TokenizerEncoder
from batch_assets.engine.model_files import ModelFile, ModelManifest, verify_model
from batch_assets.engine.protocol import Engine, EngineSetup
from batch_assets.engine.scripted import ScriptedEngine
from batch_assets.engine.vllm_engine import VllmEngine


def create_encoder(
    model: ModelPin, models: Path, *, instruction: str, prompt_format: PromptFormat
) -> TokenizerEncoder | ScriptedEncoder:
    """The encoder of a pinned model. Raises ModelError when its tokenizer is missing."""
    if model.provider == "scripted":
        return ScriptedEncoder(instruction=instruction)
    return TokenizerEncoder(models / model.name, instruction=instruction, prompt_format=prompt_format)


def create_engine(
    version: JobVersion,
    spec: EngineSpec,
    *,
    models: Path,
    json_schema: dict[str, Any],
    worker: str,
    script: Path | None,
) -> Engine:
    """An engine for a version, not started yet. The model's files are verified first.

    Raises ModelError naming the first file that is not as it was pinned.
    """
    model = version.model
    setup = EngineSetup(
        model_dir=None if model.provider == "scripted" else str(models / model.name),
        dtype=model.dtype,
        quantization=model.quantization,
        context_tokens_max=version.decoding.input_tokens_max + max(version.decoding.output_tokens_max),
        seed=version.decoding.seed,
        temperature=version.decoding.temperature,
        stop=version.decoding.stop,
        json_schema=json_schema,
        options=spec.model_dump(include={"sequences_max", "memory_gib", "gpu_memory_fraction"}, exclude_none=True),
    )
    if model.provider == "scripted":
        return ScriptedEngine(setup, worker_name=worker, script_path=script)
    verify_model(models / model.name, _manifest(model))
    return VllmEngine(setup)


def _manifest(model: ModelPin) -> ModelManifest:
    files = tuple(ModelFile(name=pin.key, size=pin.size, sha256=pin.sha256) for pin in model.files)
    return ModelManifest(digest=model.digest, files=files)
