"""Objects of a bucket as files that several threads may read at once, for DuckDB and pyarrow.

DuckDB reads a registered file system's files from several threads, also with `threads = 1`, as a seek
and then a read. obstore's own file has one position for all of them, so that a read can return the
bytes of another place (8 of 8 scans of a sound Parquet file failed with DuckDB 2.0.1). Here each
thread has its own position, and a read is one request for exactly its range.
"""

from __future__ import annotations

import io
import threading
from typing import Any

import obstore
from obstore.fsspec import FsspecStore


class RangeFile(io.RawIOBase):
    """An object, open for reading. Nothing is fetched that is not asked for."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        super().__init__()
        self.size = size  # fsspec's name for the length
        self._store = store
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
    """obstore's file system with such files. Reads only."""

    def _open(self, path: str, mode: str = "rb", *_: Any, size: int | None = None, **__: Any) -> Any:
        if mode != "rb":
            raise ValueError(f"{path} can only be read here")
        bucket, key = self._split_path(path)
        store = self._construct_store(bucket)
        return RangeFile(store, key, obstore.head(store, key)["size"] if size is None else size)
