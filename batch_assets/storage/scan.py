"""Questions about all records of a snapshot at once, answered by DuckDB out of core.

Memory is bounded by `MEMORY_LIMIT` whatever the number of records; what does not fit goes to a
scratch folder that is removed afterwards.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from batch_assets.core.sql_text import parquet_rows, problem_of, quote_name, quote_text
from batch_assets.errors import SnapshotError
from batch_assets.storage.snapshots import SnapshotReader

MEMORY_LIMIT = "1GB"
EXAMPLES = 5
_BATCH_ROWS = 256  # candidate records are long ones; few at a time
# DuckDB computes on 2,048 rows at a time in each thread: of large records one thread's are enough.
_LARGE_RECORD_BYTES = 16_384
# Numbers and dates print in a few characters; a bound without printing each of them.
_PLAIN_VALUE_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class IdProblems:
    """Record ids that cannot be used."""

    null_rows: tuple[int, ...]  # row numbers, at most EXAMPLES
    nulls: int
    duplicates: tuple[tuple[str, int, int], ...]  # (id, first row, last row), at most EXAMPLES
    duplicated_ids: int


@contextmanager
def scan(reader: SnapshotReader, scratch: Path) -> Iterator[SnapshotScan]:
    """Open the snapshot for whole-table questions."""
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".scan-") as folder, duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute(f"SET temp_directory = {quote_text(folder)}")
        connection.execute("SET preserve_insertion_order = false")
        if reader.record_bytes() > _LARGE_RECORD_BYTES:
            connection.execute("SET threads = 1")
        connection.execute("SET enable_progress_bar = false")
        reader.attach(connection)
        create_snapshot_view(connection, reader)
        try:
            yield SnapshotScan(connection, reader)
        except duckdb.Error as error:
            problem = problem_of(error)
            remedy = "" if problem.endswith(".") else ". Repair the file and pin again."
            raise SnapshotError(f"The snapshot cannot be read: {problem}{remedy}") from error


def create_snapshot_view(connection: duckdb.DuckDBPyConnection, reader: SnapshotReader) -> None:
    """View `snapshot`: the pinned rows, each with its number as `__row`."""
    first, left, places = 0, reader.snapshot.rows, []
    for pin, uri in zip(reader.snapshot.files, reader.uris, strict=True):
        places.append(f"({quote_text(uri)}, {first}, {min(pin.rows, left)})")
        first, left = first + pin.rows, max(left - pin.rows, 0)
    files = parquet_rows(reader.uris, "filename = '__file', file_row_number = true")
    connection.execute(
        f"""
        CREATE VIEW snapshot AS
        SELECT file.* EXCLUDE (file_row_number, __file), place.first + file.file_row_number AS __row
        FROM {files} AS file
        JOIN (VALUES {", ".join(places)}) AS place(path, first, taken) ON place.path = file.__file
        WHERE file.file_row_number < place.taken
        """
    )


class SnapshotScan:
    """Whole-table questions about one snapshot."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, reader: SnapshotReader) -> None:
        self._connection = connection
        self._reader = reader
        self._schema = reader.schema()
        self._id = quote_name(reader.snapshot.record_id)

    def id_problems(self) -> IdProblems:
        """Null ids, and ids that occur more than once."""
        nulls = self._connection.execute(f"SELECT count(*) FROM snapshot WHERE {self._id} IS NULL").fetchone()
        null_rows = self._connection.execute(
            f"SELECT __row FROM snapshot WHERE {self._id} IS NULL ORDER BY __row LIMIT {EXAMPLES}"
        ).fetchall()
        self._connection.execute(
            f"""
            CREATE TEMP TABLE doubled AS
            SELECT {self._id}::VARCHAR AS id, min(__row) AS first_row, max(__row) AS last_row
            FROM snapshot WHERE {self._id} IS NOT NULL GROUP BY {self._id} HAVING count(*) > 1
            """
        )
        doubled = self._connection.execute("SELECT count(*) FROM doubled").fetchone()
        examples = self._connection.execute(f"SELECT * FROM doubled ORDER BY first_row LIMIT {EXAMPLES}").fetchall()
        return IdProblems(
            null_rows=tuple(row for (row,) in null_rows),
            nulls=nulls[0] if nulls else 0,
            duplicates=tuple((str(a), int(b), int(c)) for a, b, c in examples),
            duplicated_ids=doubled[0] if doubled else 0,
        )

    def ids_also_in(self, uri: str) -> tuple[int, tuple[str, ...]]:
        """How many record ids are listed in a Parquet file, in a column of the same name, and the first few."""
        query = f"SELECT {self._id}::VARCHAR AS id FROM snapshot SEMI JOIN {parquet_rows([uri])} USING ({self._id})"
        count = self._connection.execute(f"SELECT count(*) FROM ({query})").fetchone()
        examples = self._connection.execute(f"{query} ORDER BY id LIMIT {EXAMPLES}").fetchall()
        return (int(count[0]) if count else 0), tuple(str(row[0]) for row in examples)

    def read_through(self, columns: Sequence[str]) -> None:
        """Decode these columns: text that is not UTF-8 is found before anybody computes for it."""
        for name in columns:
            self._connection.execute(f"SELECT max(hash({quote_name(name)})) FROM snapshot").fetchall()

    def suspicious(
        self, *, columns: Sequence[str], text: Sequence[str], bytes_max: int, control_tokens: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row number, record) of the records that may be over the cap or empty.

        A token is at least one byte, so a record of at most `bytes_max` bytes cannot exceed the cap
        and is not looked at, unless its text may be empty.
        """
        size = " + ".join(self._bytes_of(name) for name in columns)
        blank = "(?:[\\s\\p{Z}\\p{C}]" + "".join(f"|{re.escape(token)}" for token in control_tokens) + ")*"
        empty = " AND ".join(
            f"regexp_full_match(coalesce({quote_name(name)}::VARCHAR, ''), {quote_text(blank)})" for name in text
        )
        # Row numbers only: sorting the records themselves would need room for all of them.
        numbers: Any = self._connection.sql(
            f"SELECT __row FROM snapshot WHERE ({size}) > {bytes_max} OR ({empty}) ORDER BY __row"
        ).to_arrow_reader(_BATCH_ROWS)
        for batch in numbers:
            wanted = batch.column(0).to_pylist()
            yield from self._records(wanted, list(dict.fromkeys(columns)))

    def _records(self, wanted: Sequence[int], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The records with these row numbers, which are in order: one pass over the rows between them."""
        chosen = set(wanted)
        for row, record in enumerate(self._reader.read(range(wanted[0], wanted[-1] + 1), columns), wanted[0]):
            if row in chosen:
                yield row, record

    def _bytes_of(self, name: str) -> str:
        kind = self._schema.field(name).type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return f"coalesce(strlen({quote_name(name)}), 0)"
        return str(_PLAIN_VALUE_BYTES)
