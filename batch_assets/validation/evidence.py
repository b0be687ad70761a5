"""What the checks look at: one read-only DuckDB connection with the version's tables.

    snapshot       the pinned input records, with `__row`
    results        the rows of all sealed files, with `_file`
    dead_letters   record_id, shard, reason, error
    baseline       the published version's results (only when there is one with the same category field)

Nothing here is held in memory per record; DuckDB reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pydantic import BaseModel

from batch_assets.core.spec import GateSpec
from batch_assets.core.version import JobVersion

EXAMPLES = 10


@dataclass(frozen=True, kw_only=True)
class SealedShard:
    """A sealed file as the ledger recorded it."""

    path: Path
    sha256: str
    rows: int
    is_readable: bool  # there, and a Parquet file; what is not is in no table here


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A version to be judged."""

    version: JobVersion
    model: type[BaseModel]
    gate: GateSpec
    category_field: str | None
    evaluated_field: str | None
    golden: Mapping[str, Any]
    sealed: Sequence[SealedShard]
    sealed_schema: pa.Schema
    baseline_version: str | None
    connection: duckdb.DuckDBPyConnection = field(repr=False)

    def count(self, query: str) -> int:
        """The first number of a query's answer."""
        row = self.connection.execute(query).fetchone()
        return int(row[0]) if row and row[0] is not None else 0

    def texts(self, query: str) -> tuple[str, ...]:
        """The first column of a query's answer, as text; at most EXAMPLES."""
        rows = self.connection.execute(f"SELECT * FROM ({query}) LIMIT {EXAMPLES}").fetchall()
        return tuple(str(row[0]) for row in rows)
