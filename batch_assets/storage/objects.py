"""The object store: immutable objects under keys, put if absent. One contract for folders and for S3.

What is put under a key stays; only the pointer object of a job changes, through `swap`. A key is a
relative path with `/` between its parts. Errors are StoreError; a missing object is never one of the
errors that are worth a second try.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from obstore.exceptions import BaseError

from batch_assets.errors import StoreError

PIECE_BYTES = 8 * 1024 * 1024

Decide = Callable[[bytes | None], bytes | None]


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object as the store lists it."""

    key: str
    size: int  # bytes
    modified_ns: int  # since 1970; S3 tells whole seconds


class Objects(ABC):
    """An object store. `open_objects` makes the one that an address names."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the store is, for people and for the ledger; holds no secret."""

    @abstractmethod
    def uri(self, key: str) -> str:
        """What DuckDB (after `attach`) reads: a local path, or `s3://…`."""

    @abstractmethod
    def attach(self, connection: Any) -> None:
        """Let a DuckDB connection read this store's URIs."""

    @abstractmethod
    def open(self, key: str) -> IO[bytes]:
        """A seekable file for pyarrow and others. Raises StoreError when the object is missing."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """An object's bytes. Raises StoreError when it is missing."""

    @abstractmethod
    def stat(self, key: str) -> StoredObject | None:
        """Size and time of an object; None when it is missing."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects under a folder-like prefix, in no particular order."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store an object durably; False when another one is there already, which is then left alone."""

    @abstractmethod
    def put_file_if_absent(self, key: str, file: Path) -> bool:
        """The same for a file of any size that was made in `scratch`."""

    @abstractmethod
    def swap(self, key: str, decide: Decide) -> bytes | None:
        """Replace an object only while it is what `decide` saw; returns what stands afterwards.

        `decide` is given the object's bytes (None: missing) and returns the new ones, or None to leave
        it. It is asked again when another writer came between, so it must have no effects of its own.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object that nothing names any more; nothing happens when there is none."""

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """A local folder for files that `put_file_if_absent` will take; removed at the end."""

    def size(self, key: str) -> int | None:
        """Bytes of an object; None when it is missing."""
        found = self.stat(key)
        return None if found is None else found.size

    def exists(self, key: str) -> bool:
        return self.stat(key) is not None

    def sha256(self, key: str) -> str:
        """Digest of an object, read in pieces. Raises StoreError when it is missing."""
        with self.open(key) as file, explained(f"{key} could not be read from {self.address}"):
            return digest_of(file)


def is_hidden(key: str) -> bool:
    """Names that begin with a dot are no objects: files on their way, claims, proofs."""
    return any(part.startswith(".") for part in key.split("/"))


def digest_of(file: IO[bytes]) -> str:
    """sha256 of what is left of a file."""
    total = hashlib.sha256()
    while piece := file.read(PIECE_BYTES):
        total.update(piece)
    return total.hexdigest()


def sha256_of(path: Path) -> str:
    """Digest of a local file, read in pieces."""
    with path.open("rb") as file:
        return digest_of(file)


def missing(key: str, address: str) -> StoreError:
    return StoreError(f"The object {key} is missing from {address}; restore it from a backup.")


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """The store's and the disk's errors as ours; a missing object is the caller's business."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        text = " ".join(str(error).split())
        raise StoreError(f"{what}: {text}. Mend the cause and try again; nothing is lost.") from error
