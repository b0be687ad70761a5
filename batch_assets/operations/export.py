"""Exporting results to one file: what a job has published, or the results of one version.

Written beside the target and renamed, so that a file that exists is whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb

from batch_assets.core.sql_text import parquet_rows, quote_name, quote_text
from batch_assets.errors import InputError, VersionError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.whole import published_files, sealed_files
from batch_assets.storage.file_sets import DataFile
from batch_assets.storage.scan import MEMORY_LIMIT
from batch_assets.storage.warehouse import readable

Format = Literal["parquet", "csv", "jsonl", "spreadsheet"]

_COPY_OPTIONS: dict[Format, str] = {
    "parquet": "FORMAT parquet, COMPRESSION zstd",
    # Every value quoted: record text is untrusted and may hold separators and line ends.
    "csv": "FORMAT csv, HEADER true, FORCE_QUOTE *",
    "spreadsheet": "FORMAT csv, HEADER true, FORCE_QUOTE *",
    "jsonl": "FORMAT json, ARRAY false",
}
_NESTED = ("STRUCT", "MAP", "UNION")
# What a spreadsheet runs when it opens a CSV file: a formula, also behind white space or control characters.
_FORMULA = r"^(?:[\s\p{Z}\p{C}]*[=+\-@＝＋－＠]|[\t\r\n])"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A finished export."""

    job_version: str
    rows: int
    output: Path


def export(deployment: Deployment, job_or_version: str, file_format: Format, output: Path) -> Exported:
    """Write the rows in (shard, record id) order. A job exports what is published, a version its own results.

    Raises VersionError when there is nothing to export, InputError when the target cannot be written.
    """
    job_version = version_to_export(deployment, job_or_version)
    deployment.ledger.publications.refuse_swept(job_version)
    target = output.expanduser().absolute()
    if not target.parent.is_dir():
        raise InputError(f"Cannot write {target}: the folder {target.parent} does not exist. Create it first.")
    if target.is_dir():
        raise InputError(f"Cannot write {target}: it is a folder. Name a file with --output.")
    is_version = job_version == job_or_version
    files = (sealed_files if is_version else published_files)(deployment, job_version)
    with rows_of(deployment, job_version, files) as connection:
        columns = ", ".join(_column(row, file_format) for row in connection.execute("DESCRIBE results").fetchall())
        try:
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as scratch:
                written = Path(scratch) / target.name
                query = f"COPY (SELECT {columns} FROM results) TO {quote_text(str(written))}"
                connection.execute(f"{query} ({_COPY_OPTIONS[file_format]})")
                written.replace(target)
        except OSError as error:
            raise InputError(f"Cannot write {target}: {error.strerror}. Choose another place with --output.") from None
        count = connection.execute("SELECT count(*) FROM results").fetchone()
    return Exported(job_version=job_version, rows=count[0] if count else 0, output=target)


def version_to_export(deployment: Deployment, job_or_version: str) -> str:
    """The published version of a job, or the version itself."""
    registered = deployment.resolve(job_or_version)
    if registered.job_version == job_or_version:
        return job_or_version
    published = deployment.ledger.publications.current(job_or_version)
    if published is None:
        raise VersionError(
            f"{job_or_version} has nothing published yet. Publish a version, or name one to export its own results: "
            f"{registered.job_version} is the newest."
        )
    return published


@contextmanager
def rows_of(deployment: Deployment, job_version: str, files: Iterable[DataFile]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection with the rows of these files of the version as the view `results`."""
    uris = [deployment.objects.uri(file.key) for file in files]
    if not uris:
        raise VersionError(f"{job_version} has no sealed shard yet; run `batch-assets run {job_version}` first.")
    with duckdb.connect() as connection, readable(f"The files of {job_version}"):
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET enable_progress_bar = false")
        deployment.objects.attach(connection)
        connection.execute(f"CREATE VIEW results AS SELECT * FROM {parquet_rows(uris)}")
        yield connection


def _column(row: tuple[str, ...], file_format: Format) -> str:
    """Nested values become JSON in CSV, which has no types of its own; for a spreadsheet, formulas become text."""
    name, kind = quote_name(row[0]), row[1]
    if file_format in ("csv", "spreadsheet") and (kind.endswith("]") or kind.startswith(_NESTED)):
        return f"to_json({name}) AS {name}"
    if file_format == "spreadsheet" and kind == "VARCHAR":
        is_formula = f"regexp_matches({name}, {quote_text(_FORMULA)})"
        return f"CASE WHEN {is_formula} THEN concat('''', {name}) ELSE {name} END AS {name}"
    return name
