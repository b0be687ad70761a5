"""Objects of a bucket as files that several threads may read at once, for DuckDB and pyarrow.

DuckDB reads a registered file system's files from several threads, also with `threads = 1`, as a seek
and then a read. obstore's own file has one position for all of them, so that a read can return the
bytes of another place (8 of 8 scans of a sound Parquet file failed with DuckDB 2.0.1). Here each
thread has its own position, and a read is one request for exactly its range.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import obstore
from obstore.fsspec import FsspecStore

Explained = Callable[..., AbstractContextManager[None]]


class RangeFile(io.RawIOBase):
    """An object, open for reading. Nothing is fetched that is not asked for."""

    def __init__(self, store: Any, path: str, size: int, explained: Explained) -> None:
        """`explained` turns the store's errors into ours."""
        super().__init__()
        self.size = size  # fsspec's name for the length
        self._store = store
        self._explained = explained
        self._path = path
        self._at = threading.local()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(getattr(self._at, "position", 0))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.size}[whence]
        self._at.position = max(start + offset, 0)
        return self.tell()

    def read(self, length: int | None = -1) -> bytes:
        start = self.tell()
        stop = self.size if length is None or length < 0 else min(start + length, self.size)
        if start >= stop:
            return b""
        with self._explained(f"{self._path} could not be read", self._path):
            data = bytes(obstore.get_range(self._store, self._path, start=start, end=stop))
        self._at.position = start + len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class RangeFiles(FsspecStore):
    """The objects of one bucket as a file system that only reads.

    DuckDB asks for size and time of a file again and again (70 times for each of a version's files in a
    round of checks); here each is looked at once. So an instance is for immutable objects, and for one connection.
    """

    cachable = False  # fsspec would hand out an older instance for a store that prints the same

    def __init__(self, store: Any, explained: Explained) -> None:
        """`store` is the bucket without a prefix."""
        super().__init__("s3")
        self._store = store
        self._explained = explained
        self._heads: dict[str, Any] = {}

    def _construct_store(self, _bucket: str) -> Any:
        return self._store

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        """fsspec's description of a file, which its other questions end in. Raises FileNotFoundError."""
        head = self._head(path)
        return {"name": path, "type": "file", "size": head["size"], "e_tag": head["e_tag"]}

    def modified(self, path: str) -> datetime:
        found: datetime = self._head(path)["last_modified"]
        return found

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> Any:
        if mode != "rb":
            raise ValueError(f"{path} can only be read here")
        return RangeFile(self._store, self._split_path(path)[1], self._head(path)["size"], self._explained)

    def _head(self, path: str) -> Any:
        known = self._heads.get(path)
        if known is None:
            with self._explained(f"{path} could not be looked at"):
                known = self._heads[path] = obstore.head(self._store, self._split_path(path)[1])
        return known
