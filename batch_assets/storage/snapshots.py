"""The input records: pinned once by digest, then read by row range.

A Parquet snapshot stays where it is; CSV and JSONL are converted into the object store once, and the
rows of a Delta or Iceberg table are copied there. Rows
are numbered from 0 in the order of the pinned files, and a shard is a range of those numbers.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.spec import SnapshotSpec
from batch_assets.core.version import FilePin, SnapshotPin
from batch_assets.errors import SnapshotError
from batch_assets.storage.conversion import convert
from batch_assets.storage.delta_tables import find_delta
from batch_assets.storage.iceberg_tables import find_iceberg
from batch_assets.storage.objects import Objects, missing, sha256_of
from batch_assets.storage.snapshot_columns import check_columns, check_same_columns, open_parquet, plain_type
from batch_assets.storage.table_sources import copy_name, copy_table, refuse_table, table_address

TABLES = {"delta": find_delta, "iceberg": find_iceberg}
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
READ_BATCH_ROWS = 512


def pin_snapshot(spec: SnapshotSpec, folder: Path, objects: Objects) -> SnapshotPin:
    """Digest the snapshot's files, convert what is not Parquet, and copy the rows of a table's version.

    Raises SnapshotError naming the file (and line) when anything cannot be read; nothing is kept then.
    """
    sources: list[FilePin] = []
    files: list[FilePin] = []
    left = spec.rows
    if spec.format in TABLES:
        source, pinned = _pin_table(spec, folder, objects)
        sources, files, left = [source], [pinned], 0
    for path in find_files(spec, folder) if spec.format not in TABLES else ():
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
    check_same_columns(
        [(place.uri, place.parquet().schema_arrow) for place in (Place(pin.key, objects) for pin in files)]
    )
    return snapshot


def find_files(spec: SnapshotSpec, folder: Path) -> list[Path]:
    """The snapshot's files in name order. Raises SnapshotError when there are none."""
    target = folder / Path(spec.path).expanduser()
    if target.is_dir():
        if spec.format == "auto":
            refuse_table(target)
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


@dataclass(frozen=True)
class Place:
    """Where a pinned file lies: an absolute path of this machine, or a key of the object store."""

    key: str
    objects: Objects

    @property
    def uri(self) -> str:
        """What DuckDB reads, and what people are told."""
        return self.key if self._is_outside else self.objects.uri(self.key)

    def stat(self) -> tuple[int, int] | None:
        """Bytes, and when it was written in ns since 1970; None when it is missing."""
        if self._is_outside:
            path = Path(self.key)
            return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None
        found = self.objects.stat(self.key)
        return None if found is None else (found.size, found.modified_ns)

    def sha256(self) -> str:
        return sha256_of(Path(self.key)) if self._is_outside else self.objects.sha256(self.key)

    def parquet(self) -> pq.ParquetFile:
        """Raises SnapshotError when it is no Parquet file."""
        return open_parquet(Path(self.key) if self._is_outside else self.objects.open(self.key), self.uri)

    @property
    def _is_outside(self) -> bool:
        return self.key.startswith("/")


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
    with objects.scratch() as scratch:
        target = scratch / "converted.parquet"
        rows = convert(path, kind, target, rows_max=rows_max)
        if rows == 0:
            return None
        check_columns(open_parquet(target).schema_arrow, spec, where=path)
        is_ours = _store_conversion(objects, key, target)
        kept_digest = sha256_of(target) if is_ours else objects.sha256(key)
    return FilePin(key=str(path), size=size, sha256=digest, rows=rows), _stored(objects, key, rows, kept_digest)


def _pin_table(spec: SnapshotSpec, folder: Path, objects: Objects) -> tuple[FilePin, FilePin]:
    """(the version of the table, the copy of its rows): both are the same whenever that version is pinned."""
    version = spec.version if spec.format == "delta" else spec.snapshot_id
    table = TABLES[spec.format](table_address(spec, folder), version)
    check_columns(table.schema, spec, where=table.name)
    key = f"snapshots/{spec.format}-{copy_name(table, spec)}.parquet"
    rows = _rows_kept(objects, key)
    digest = None if rows is None else objects.sha256(key)
    if rows is None or digest is None:
        with objects.scratch() as scratch:
            target = scratch / "copied.parquet"
            rows = copy_table(table, target, record_id=spec.record_id, rows_max=spec.rows)
            if rows == 0:
                raise SnapshotError(f"The table {table.name} has no rows; there is nothing to do.")
            digest = sha256_of(target) if _store_conversion(objects, key, target) else objects.sha256(key)
    source = FilePin(key=table.name, size=table.size, sha256=table.digest, rows=rows)
    return source, _stored(objects, key, rows, digest)


def _rows_kept(objects: Objects, key: str) -> int | None:
    """The rows of an earlier copy; None when there is none, or it is damaged."""
    try:
        return int(Place(key, objects).parquet().metadata.num_rows) if objects.exists(key) else None
    except SnapshotError:
        return None


def _stored(objects: Objects, key: str, rows: int, sha256: str) -> FilePin:
    stored = objects.stat(key)
    if stored is None:
        raise missing(key, objects.address)
    return FilePin(key=key, size=stored.size, sha256=sha256, rows=rows, modified_ns=stored.modified_ns)


def _store_conversion(objects: Objects, key: str, converted: Path) -> bool:
    """Keep an earlier conversion of the same bytes, unless it is damaged; True when it is the same file."""
    if objects.exists(key):
        try:
            Place(key, objects).parquet()
        except SnapshotError:
            objects.remove(key)
    return objects.put_file_if_absent(key, converted)


class SnapshotReader:
    """Reads pinned rows. One reader per worker; keeps no file open between calls.

    `moved` says where files lie now that were moved since they were pinned, by their digest.
    """

    def __init__(self, snapshot: SnapshotPin, objects: Objects, moved: Mapping[str, str] | None = None) -> None:
        self.snapshot = snapshot
        self._objects = objects
        self._moved = moved or {}

    @property
    def uris(self) -> list[str]:
        """The Parquet files in row order, as DuckDB reads them."""
        return [place.uri for place in self._places]

    def attach(self, connection: Any) -> None:
        """Let a DuckDB connection read them."""
        self._objects.attach(connection)

    @property
    def _places(self) -> list[Place]:
        return [Place(self._moved.get(pin.sha256, pin.key), self._objects) for pin in self.snapshot.files]

    def schema(self) -> pa.Schema:
        """The columns, the same in all files; dictionary-encoded ones as their plain type."""
        fields = self._places[0].parquet().schema_arrow
        return pa.schema([field.with_type(plain_type(field.type)) for field in fields])

    def verify_files(self) -> None:
        """Compare every file with its pin: size, row count, and the content if it was written since.

        Cheap enough for every worker. Raises SnapshotError naming the first file that is not as it was pinned.
        """
        for pin, place in zip(self.snapshot.files, self._places, strict=True):
            self._open(pin, place)
            found = place.stat()
            if (found is None or found[1] != pin.modified_ns) and place.sha256() != pin.sha256:
                raise SnapshotError(
                    f"The snapshot file {place.uri} has other content than was pinned. It was changed after pinning: "
                    "restore it, or pin a new version."
                )

    def read(self, rows: range, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Records of a row range as mappings of the given columns, in row order."""
        for table in self.read_tables(rows, columns):
            yield from table.to_pylist()

    def read_tables(self, rows: range, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same in pieces of at most `READ_BATCH_ROWS` rows."""
        first = 0
        for pin, place in zip(self.snapshot.files, self._places, strict=True):
            start, stop = max(rows.start - first, 0), min(rows.stop - first, pin.rows)
            if start < stop:
                yield from _read_file(self._open(pin, place), range(start, stop), list(dict.fromkeys(columns)))
            first += pin.rows

    def record_bytes(self) -> int:
        """The size of a record in the file where they are largest, on average, before compression."""
        sizes = [0]
        for pin, place in zip(self.snapshot.files, self._places, strict=True):
            metadata = self._open(pin, place).metadata
            total = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            sizes.append(total // max(metadata.num_rows, 1))
        return max(sizes)

    def _open(self, pin: FilePin, place: Place) -> pq.ParquetFile:
        found = place.stat()
        if found is None:
            raise SnapshotError(
                f"The snapshot file {place.uri} is missing. Restore it; or, if it was moved, set snapshot.path to where it is "
                "now and pin again."
            )
        if found[0] != pin.size:
            raise SnapshotError(
                f"The snapshot file {place.uri} has {found[0]:,} bytes where {pin.size:,} were pinned. "
                "It was changed after pinning: restore it, or pin a new version."
            )
        file = place.parquet()
        if file.metadata.num_rows != pin.rows:
            raise SnapshotError(
                f"The snapshot file {place.uri} has {file.metadata.num_rows:,} rows where {pin.rows:,} were pinned. "
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
