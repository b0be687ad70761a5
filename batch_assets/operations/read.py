"""Reading what is published from the JSON pointer alone: no ledger, no catalog, on any machine that sees the store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, overload

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from batch_assets.core.sql_text import parquet_rows
from batch_assets.errors import InputError, StoreError
from batch_assets.settings import Settings
from batch_assets.storage.arrow_files import arrow_files
from batch_assets.storage.file_sets import DataFile
from batch_assets.storage.objects import Objects
from batch_assets.storage.pointer_object import Pointer, read_pointer
from batch_assets.storage.stores import open_to_read

AT_ONCE = 16  # files that are looked at together: their number counts, not their size


@overload
def read_published(
    job: str, *, settings: Settings | None = None, as_: Literal["arrow"] = "arrow", digests: bool = False
) -> ds.Dataset: ...


@overload
def read_published(
    job: str, *, settings: Settings | None = None, as_: Literal["duckdb"], digests: bool = False
) -> duckdb.DuckDBPyRelation: ...


def read_published(
    job: str, *, settings: Settings | None = None, as_: Literal["arrow", "duckdb"] = "arrow", digests: bool = False
) -> ds.Dataset | duckdb.DuckDBPyRelation:
    """The published rows of a job, as an Arrow dataset or a DuckDB relation.

    Read from the pointer object `published/<job>.json` of the object store that `settings` names (or the
    BATCH_ASSETS_ variables). All of it is one version: the files are immutable, so what is returned stays
    what it is when another version is published. Size and row count of each file are compared with the
    pointer; with `digests`, so is every byte.

    Raises VersionError when nothing is published, StoreError when the pointer is damaged or a file is
    missing or altered, InputError when `as_` is neither.
    """
    if as_ not in ("arrow", "duckdb"):
        raise InputError(f"as_={as_!r} is no way to read; there are 'arrow' and 'duckdb'.")
    where = settings or Settings()
    objects = open_to_read(where.objects_address, Path(tempfile.gettempdir()))
    pointer = read_pointer(objects, job)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        schemas = list(pool.map(_verifier(objects, pointer, digests), pointer.files))
    return _dataset(objects, pointer, schemas[0]) if as_ == "arrow" else _relation(objects, pointer)


def _verifier(objects: Objects, pointer: Pointer, digests: bool) -> Callable[[DataFile], pa.Schema]:
    """Compares a file with what the pointer says of it, and gives its columns."""
    problem = (
        f"It is not what was published as {pointer.job_version}; restore it from a backup, or publish another version."
    )

    def verify(file: DataFile) -> pa.Schema:
        uri, size = objects.uri(file.key), objects.size(file.key)
        if size is None:
            raise StoreError(f"{uri} is missing, and {pointer.job} is published with it. {problem}")
        if size != file.bytes:
            raise StoreError(f"{uri} has {size:,} bytes instead of {file.bytes:,}. {problem}")
        try:
            with objects.open(file.key) as opened:
                footer = pq.read_metadata(opened)
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{uri} cannot be read ({str(error).splitlines()[0]}). {problem}") from error
        if footer.num_rows != file.rows:
            raise StoreError(f"{uri} has {footer.num_rows:,} rows instead of {file.rows:,}. {problem}")
        if digests and objects.sha256(file.key) != file.sha256:
            raise StoreError(f"{uri} has other bytes than were published (its digest differs). {problem}")
        return footer.schema.to_arrow_schema()

    return verify


def _dataset(objects: Objects, pointer: Pointer, schema: pa.Schema) -> ds.Dataset:
    keys = [file.key for file in pointer.files]
    return ds.FileSystemDataset.from_paths(keys, schema, ds.ParquetFileFormat(), filesystem=arrow_files(objects))


def _relation(objects: Objects, pointer: Pointer) -> duckdb.DuckDBPyRelation:
    connection: Any = duckdb.connect()  # lives as long as the relation
    objects.attach(connection)
    relation: duckdb.DuckDBPyRelation = connection.sql(
        f"SELECT * FROM {parquet_rows(objects.uri(file.key) for file in pointer.files)}"
    )
    return relation
