"""Objects in a local folder: linked into place, and on the disk before anybody is told of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, cast

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore

from batch_assets.storage.objects import Decide, Objects, StoredObject, explained, is_hidden, missing, sha256_of


class LocalObjects(Objects):
    """An object store under one folder. Hidden files and folders in it are no objects."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._store = LocalStore(prefix=root)

    @property
    def address(self) -> str:
        return str(self.root)

    def path(self, key: str) -> Path:
        """Where the object lies."""
        return self.root / key

    def uri(self, key: str) -> str:
        return str(self.path(key))

    def attach(self, connection: Any) -> None:
        """DuckDB reads local files by itself."""

    def open(self, key: str) -> IO[bytes]:
        try:
            with explained(f"{key} could not be read from {self.root}"):
                # Arrow's own file: its readers need no Python lock for it.
                return cast("IO[bytes]", pa.OSFile(str(self.path(key)), "rb"))
        except FileNotFoundError as error:
            raise missing(key, self.address) from error

    def get(self, key: str) -> bytes:
        try:
            with explained(f"{key} could not be read from {self.root}"):
                return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError as error:
            raise missing(key, self.address) from error

    def stat(self, key: str) -> StoredObject | None:
        path = self.path(key)
        if not path.is_file():
            return None
        found = path.stat()
        return StoredObject(key=key, size=found.st_size, modified_ns=found.st_mtime_ns)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        for path in sorted(self.path(prefix).rglob("*")):
            key = path.relative_to(self.root).as_posix()
            # `#`: what obstore has not finished writing.
            if not is_hidden(key) and "#" not in path.suffix and (found := self.stat(key)) is not None:
                yield found

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with explained(f"{key} could not be stored in {self.root}"):
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                if self.get(key) != data:
                    return False
            self._make_durable(key)
        return True

    def put_file_if_absent(self, key: str, file: Path) -> bool:
        """`file` must lie on the store's disk: it is linked into place, which only one writer can do."""
        target = self.path(key)
        with explained(f"{key} could not be stored in {self.root}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, target)
            except FileExistsError:
                if sha256_of(target) != sha256_of(file):
                    return False
            self._make_durable(key)
        return True

    def swap(self, key: str, decide: Decide) -> bytes | None:
        """One writer at a time by a file lock; readers see the old object or the new one, whole."""
        target = self.path(key)
        with explained(f"{key} could not be stored in {self.root}"), (self.root / ".swap.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            current = target.read_bytes() if target.is_file() else None
            new = decide(current)
            if new is None or new == current:
                return current
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            try:
                with beside.open("xb") as file:
                    file.write(new)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(target)
            finally:
                beside.unlink(missing_ok=True)
            self._make_durable(key)
        return new

    def remove(self, key: str) -> None:
        with explained(f"{key} could not be removed from {self.root}"):
            self.path(key).unlink(missing_ok=True)

    def scratch(self) -> AbstractContextManager[Path]:
        return _scratch(self.root)

    def _make_durable(self, key: str) -> None:
        """fsync the file and its folders: the local store returns before the disk has it."""
        path = self.path(key)
        folders = [folder for folder in path.parents if folder.is_relative_to(self.root)]
        for target in (path, *folders):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=root, prefix=".convert-") as folder:
        yield Path(folder)
