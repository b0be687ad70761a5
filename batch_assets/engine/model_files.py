"""The identity of a model directory: which files it holds, byte for byte.

The digest covers weights, config, tokenizer and chat template alike, since each of them changes
answers. Hidden files and folders are left out: tools keep their own notes there. Symbolic links are
followed, because the caches of model hubs are made of them. Where the directory lies is no part of
its identity.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from batch_assets.errors import ModelError

_READ_BYTES = 1 << 20
_HASHING_THREADS = 8  # hashing releases the GIL; beyond this the disk is the limit


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model directory."""

    name: str  # relative to the directory, with forward slashes
    size: int  # bytes
    sha256: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes, sha256 {self.sha256[:12]}…"


@dataclass(frozen=True, kw_only=True)
class ModelManifest:
    """All files of a model directory, in name order, and the digest over them."""

    digest: str
    files: tuple[ModelFile, ...]


def digest_model(directory: Path | str) -> ModelManifest:
    """Read every file of a model directory.

    Raises ModelError when it is missing, holds no files, or a file cannot be read.
    """
    root = Path(directory)
    names = list_model(root)
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        files = tuple(pool.map(lambda name: _read_file(root, name), names))
    return ModelManifest(digest=manifest_digest(files), files=files)


def manifest_digest(files: Iterable[ModelFile]) -> str:
    """sha256 over the lines `name NUL size NUL sha256`, sorted by name."""
    total = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        total.update(f"{file.name}\0{file.size}\0{file.sha256}\n".encode())
    return total.hexdigest()


def verify_model(directory: Path | str, pinned: ModelManifest) -> None:
    """Prove that a directory holds exactly the pinned files.

    Raises ModelError naming the first file, in name order, that differs. Names and sizes are compared
    before anything is read, so a wrong directory is refused at once.
    """
    root = Path(directory)
    expected = {file.name: file for file in pinned.files}
    found = set(list_model(root))
    for name in sorted(found | expected.keys()):
        if name not in expected:
            raise _differs(root, name, pinned="no such file", found="one that was added since")
        if name not in found:
            raise _differs(root, name, pinned=str(expected[name]), found="no such file")
        if (size := _size(root / name)) != expected[name].size:
            raise _differs(root, name, pinned=str(expected[name]), found=f"{size:,} bytes")
    for file in digest_model(root).files:
        if file != expected[file.name]:
            raise _differs(root, file.name, pinned=str(expected[file.name]), found=str(file))


def list_model(root: Path) -> list[str]:
    """Names of the regular files below `root`, sorted; hidden ones left out."""
    if not root.is_dir():
        raise ModelError(
            f"There is no model directory {root}, so nothing can be pinned or run with it. "
            "For the demo's model run `make model`; for your own, put its files there or correct "
            "model.path in defs.yaml (it is relative to BATCH_ASSETS_MODELS)."
        )
    names = sorted(_walk(root))
    if not names:
        raise ModelError(
            f"The model directory {root} holds no files, so nothing can be pinned or run with it. "
            "For the demo's model remove the directory and run `make model`; for your own, put its files there."
        )
    return names


def _walk(folder: Path, prefix: str = "", above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names below `folder`. `above` holds the real paths on the way here: a link back to one ends there."""
    real = os.path.realpath(folder)
    if real in above:
        return
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", above | {real})
        elif entry.is_file() or entry.is_symlink():
            # A dangling link counts as a file: it must fail when read, not vanish from the digest.
            yield f"{prefix}{entry.name}"


def _read_file(root: Path, name: str) -> ModelFile:
    sha256, size = hashlib.sha256(), 0
    try:
        with (root / name).open("rb") as stream:
            while block := stream.read(_READ_BYTES):
                sha256.update(block)
                size += len(block)
    except OSError as error:
        raise _unreadable(root / name, error) from error
    return ModelFile(name=name, size=size, sha256=sha256.hexdigest())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"The model file {path} cannot be read ({error.strerror}), so the model cannot be identified. "
        "Restore the file or its permissions, then try again."
    )


def _differs(root: Path, name: str, *, pinned: str, found: str) -> ModelError:
    return ModelError(
        f"The model in {root} is not the one that was pinned: {name} was pinned as {pinned}, found is {found}. "
        "Answers of another model must not be mixed into this version. Restore the pinned files, or pin the "
        "job again to get a new version for these."
    )
