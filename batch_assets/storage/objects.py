"""The object store: immutable objects under keys, put if absent.

obstore is the one storage API, because its put has a create mode on every store (pyarrow's own
writers overwrite silently). "Already exists" can be the answer to our own put whose first response
was lost, so the object is read back and compared before it is believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from batch_assets.errors import StoreError


class Objects:
    """A local object store under one folder."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._store = LocalStore(prefix=root)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store an object durably; False when there is one already, which is then left alone."""
        with _explained(f"{key} could not be stored in {self.root}"):
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return self.get(key) == data
            _make_durable(self.path(key))
        return True

    def put_file_if_absent(self, key: str, file: Path) -> None:
        """Store a file of any size durably, unless there is an object already.

        `file` must lie on the store's disk: it is linked into place, which only one writer can do.
        """
        target = self.path(key)
        with _explained(f"{key} could not be stored in {self.root}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.link(file, target)
            _make_durable(target)

    def replace(self, key: str, data: bytes) -> None:
        """Overwrite a derived object in one step. Nothing that is a truth of its own goes here."""
        with _explained(f"{key} could not be stored in {self.root}"):
            obstore.put(self._store, key, data, use_multipart=False)

    def get(self, key: str) -> bytes:
        """An object's bytes. Raises StoreError when it is missing."""
        try:
            with _explained(f"{key} could not be read from {self.root}"):
                return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError as error:
            raise StoreError(f"The object {key} is missing from {self.root}; restore it from a backup.") from error

    def remove(self, key: str) -> None:
        """Remove an object that nothing names any more; nothing happens when there is none."""
        with _explained(f"{key} could not be removed from {self.root}"):
            self.path(key).unlink(missing_ok=True)

    def exists(self, key: str) -> bool:
        return self.path(key).is_file()

    def path(self, key: str) -> Path:
        """Where a reader on this machine finds the object."""
        return self.root / key


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """The store's and the disk's errors as ours; a missing object is the caller's business."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        text = " ".join(str(error).split())
        raise StoreError(f"{what}: {text}. Mend the cause and try again; nothing is lost.") from error


def sha256_of(path: Path) -> str:
    """Digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_durable(path: Path) -> None:
    """fsync the file and its folders: the local store returns before the disk has it."""
    for target in (path, path.parent, path.parent.parent):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
