"""The input records: pinned once by digest, then read by row range.

A Parquet snapshot stays where it is; CSV and JSONL are converted into the object store once. Rows
are numbered from 0 in the order of the pinned files, and a shard is a range of those numbers.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.spec import SnapshotSpec
from batch_assets.core.version import FilePin, SnapshotPin
from batch_assets.errors import SnapshotError
from batch_assets.storage.conversion import convert
from batch_assets.storage.objects import Objects, sha256_of
from batch_assets.storage.snapshot_columns import check_columns, check_same_columns, open_parquet, plain_type

SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
READ_BATCH_ROWS = 512


def pin_snapshot(spec: SnapshotSpec, folder: Path, objects: Objects) -> SnapshotPin:
    """Digest the snapshot's files and convert what is not Parquet.

    Raises SnapshotError naming the file (and line) when anything cannot be read; nothing is kept then.
    """
    paths = find_files(spec, folder)
    sources: list[FilePin] = []
    files: list[FilePin] = []
    left = spec.rows
    for path in paths:
        if left == 0:
            break
        pins = _pin_file(path, spec, objects, left)
        if pins is None:
            continue
        source, pinned = pins
        if left is not None:
            left -= min(left, pinned.rows)
        sources.append(source)
        files.append(pinned)
    rows = sum(pin.rows for pin in files)
    rows = rows if spec.rows is None else min(rows, spec.rows)
    if rows == 0:
        raise SnapshotError(f"The snapshot {spec.path} in {folder} has no rows; there is nothing to do.")
    snapshot = SnapshotPin(
        sources=tuple(sources),
        files=tuple(files),
        rows=rows,
        record_id=spec.record_id,
        text=spec.text,
        record_class=spec.record_class,
        access_labels=spec.access_labels,
    )
    check_same_columns([local_path(pin, objects) for pin in files])
    return snapshot


def find_files(spec: SnapshotSpec, folder: Path) -> list[Path]:
    """The snapshot's files in name order. Raises SnapshotError when there are none."""
    target = folder / Path(spec.path).expanduser()
    if target.is_dir():
        paths = [path for path in target.rglob("*") if path.is_file() and _visible(path, target)]
        if spec.format == "auto":
            paths = [path for path in paths if path.suffix.lower() in SUFFIXES]
    elif target.is_file():
        paths = [target]
    else:
        found = glob.glob(str(target), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        paths = [Path(name) for name in found if Path(name).is_file()]
    if not paths:
        raise SnapshotError(
            f"The snapshot {target} matches no file. Set snapshot.path in defs.yaml to a Parquet, JSONL or CSV file, "
            "a folder of them, or a glob."
        )
    return sorted(path.absolute() for path in paths)


def file_format(path: Path, spec: SnapshotSpec) -> str:
    """ "parquet", "jsonl" or "csv", from the spec or the file's name."""
    if spec.format != "auto":
        return spec.format
    found = SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise SnapshotError(
            f"{path}: cannot tell the format from {path.suffix or 'a name without an ending'!r}. "
            f"Set snapshot.format to parquet, jsonl or csv."
        )
    return found


def local_path(pin: FilePin, objects: Objects) -> Path:
    """Where a pinned file lies: an absolute path, or a key of the object store."""
    return Path(pin.key) if pin.key.startswith("/") else objects.path(pin.key)


def _visible(path: Path, root: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def _pin_file(path: Path, spec: SnapshotSpec, objects: Objects, rows_max: int | None) -> tuple[FilePin, FilePin] | None:
    """(the file as given, the file as read); None when a converted file would have no rows."""
    kind, digest, size = file_format(path, spec), sha256_of(path), path.stat().st_size
    if kind == "parquet":
        file = open_parquet(path)
        check_columns(file.schema_arrow, spec, where=path)
        written = path.stat().st_mtime_ns
        pin = FilePin(key=str(path), size=size, sha256=digest, rows=file.metadata.num_rows, modified_ns=written)
        return pin, pin
    # The limit is in the key: the same file pinned with another limit is another conversion.
    key = f"snapshots/{digest[:16]}{'' if rows_max is None else f'-{rows_max}'}.parquet"
    with tempfile.TemporaryDirectory(dir=objects.root, prefix=".convert-") as scratch:
        target = Path(scratch) / "converted.parquet"
        rows = convert(path, kind, target, rows_max=rows_max)
        if rows == 0:
            return None
        check_columns(open_parquet(target).schema_arrow, spec, where=path)
        _store_conversion(objects, key, target)
    stored = objects.path(key)
    converted = FilePin(
        key=key,
        size=stored.stat().st_size,
        sha256=sha256_of(stored),
        rows=rows,
        modified_ns=stored.stat().st_mtime_ns,
    )
    return FilePin(key=str(path), size=size, sha256=digest, rows=rows), converted


def _store_conversion(objects: Objects, key: str, converted: Path) -> None:
    """Keep an earlier conversion of the same bytes, unless it is damaged."""
    if objects.exists(key):
        try:
            open_parquet(objects.path(key))
        except SnapshotError:
            objects.path(key).unlink()
    objects.put_file_if_absent(key, converted)


class SnapshotReader:
    """Reads pinned rows. One reader per worker; keeps no file open between calls.

    `moved` says where files lie now that were moved since they were pinned, by their digest.
    """

    def __init__(self, snapshot: SnapshotPin, objects: Objects, moved: Mapping[str, str] | None = None) -> None:
        self.snapshot = snapshot
        self._objects = objects
        self._moved = moved or {}

    @property
    def paths(self) -> list[Path]:
        """The Parquet files in row order."""
        return [self._path(pin) for pin in self.snapshot.files]

    def _path(self, pin: FilePin) -> Path:
        moved = self._moved.get(pin.sha256)
        return local_path(pin, self._objects) if moved is None else Path(moved)

    def schema(self) -> pa.Schema:
        """The columns, the same in all files; dictionary-encoded ones as their plain type."""
        fields = open_parquet(self.paths[0]).schema_arrow
        return pa.schema([field.with_type(plain_type(field.type)) for field in fields])

    def verify_files(self) -> None:
        """Compare every file with its pin: size, row count, and the content if it was written since.

        Cheap enough for every worker. Raises SnapshotError naming the first file that is not as it was pinned.
        """
        for pin, path in zip(self.snapshot.files, self.paths, strict=True):
            self._open(pin, path)
            if path.stat().st_mtime_ns != pin.modified_ns and sha256_of(path) != pin.sha256:
                raise SnapshotError(
                    f"The snapshot file {path} has other content than was pinned. It was changed after pinning: "
                    "restore it, or pin a new version."
                )

    def read(self, rows: range, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Records of a row range as mappings of the given columns, in row order."""
        for table in self.read_tables(rows, columns):
            yield from table.to_pylist()

    def read_tables(self, rows: range, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same in pieces of at most `READ_BATCH_ROWS` rows."""
        first = 0
        for pin, path in zip(self.snapshot.files, self.paths, strict=True):
            start, stop = max(rows.start - first, 0), min(rows.stop - first, pin.rows)
            if start < stop:
                yield from _read_file(self._open(pin, path), range(start, stop), list(dict.fromkeys(columns)))
            first += pin.rows

    def record_bytes(self) -> int:
        """The size of a record in the file where they are largest, on average, before compression."""
        sizes = [0]
        for pin, path in zip(self.snapshot.files, self.paths, strict=True):
            metadata = self._open(pin, path).metadata
            total = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            sizes.append(total // max(metadata.num_rows, 1))
        return max(sizes)

    def _open(self, pin: FilePin, path: Path) -> pq.ParquetFile:
        if not path.is_file():
            raise SnapshotError(
                f"The snapshot file {path} is missing. Restore it; or, if it was moved, set snapshot.path to where it is "
                "now and pin again."
            )
        if path.stat().st_size != pin.size:
            raise SnapshotError(
                f"The snapshot file {path} has {path.stat().st_size:,} bytes where {pin.size:,} were pinned. "
                "It was changed after pinning: restore it, or pin a new version."
            )
        file = open_parquet(path)
        if file.metadata.num_rows != pin.rows:
            raise SnapshotError(
                f"The snapshot file {path} has {file.metadata.num_rows:,} rows where {pin.rows:,} were pinned. "
                "It was changed after pinning: restore it, or pin a new version."
            )
        return file


def _read_file(file: pq.ParquetFile, rows: range, columns: list[str]) -> Iterator[pa.Table]:
    """Rows of one file, decoding only the row groups and columns that are needed."""
    groups: list[int] = []
    skip, first = 0, 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if first + size > rows.start and first < rows.stop:
            if not groups:
                skip = rows.start - first
            groups.append(group)
        first += size
    left = len(rows)
    for batch in _decoded(file.iter_batches(batch_size=READ_BATCH_ROWS, row_groups=groups, columns=columns)):
        piece = batch.slice(skip, left)
        skip = max(skip - batch.num_rows, 0)
        if piece.num_rows:
            left -= piece.num_rows
            yield pa.Table.from_batches([piece])
        if left == 0:
            return


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise SnapshotError(f"A snapshot file is damaged: {error}. Restore it.") from error
