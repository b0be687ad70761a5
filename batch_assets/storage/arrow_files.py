"""The object store as a file system of Arrow, for reading files that are named one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import fs

from batch_assets.errors import StoreError
from batch_assets.storage.objects import Objects


def arrow_files(objects: Objects) -> fs.FileSystem:
    """A read-only file system whose paths are keys."""
    return fs.PyFileSystem(_Handler(objects))


class _Handler(fs.FileSystemHandler):  # type: ignore[misc]
    """What Arrow asks for when it reads; everything else says that it cannot be done here."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and other._objects.address == self._objects.address

    def __hash__(self) -> int:
        return hash(self._objects.address)

    def get_type_name(self) -> str:
        return "batch_assets"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        found = [(path, self._objects.size(path)) for path in paths]
        return [
            fs.FileInfo(path, fs.FileType.NotFound) if size is None else fs.FileInfo(path, fs.FileType.File, size=size)
            for path, size in found
        ]

    def open_input_file(self, path: str) -> pa.NativeFile:
        try:
            return pa.PythonFile(self._objects.open(path), mode="r")
        except StoreError as error:
            raise FileNotFoundError(str(error)) from error

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def get_file_info_selector(self, selector: Any) -> Any:
        raise NotImplementedError("files are read by their names here, never listed")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("published files are only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
