"""What the checks look at: one read-only DuckDB connection with the version's tables.

    snapshot            the pinned input records, with `__row`
    results             the rows of all sealed files of this version, with the file's URI as `_file`
    dead_letters        record_id, shard, reason, error
    whole               what readers would see if this version were published; columns as in a sealed file
    whole_dead_letters  record_id, reason, error of the records that would have no row there
    baseline            what readers see now (only when something is published)

Nothing here is held in memory per record; DuckDB reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import duckdb
import pyarrow as pa
from pydantic import BaseModel

from batch_assets.core.graders import Grader
from batch_assets.core.judges import Judged
from batch_assets.core.spec import GateSpec
from batch_assets.core.version import JobVersion

EXAMPLES = 10


@dataclass(frozen=True, kw_only=True)
class SealedShard:
    """A sealed file as the ledger recorded it."""

    key: str  # in the object store
    uri: str  # what DuckDB reads
    shard: int
    sha256: str
    rows: int
    rows_found: int | None  # in the file itself; None: missing or not to be read, and so in no table here
    columns_missing: tuple[str, ...]  # null in `results`
    columns_mistyped: tuple[str, ...]  # cast in `results`, null where that cannot be
    open: Callable[[], IO[bytes]] = field(repr=False)
    digest: Callable[[], str | None] = field(repr=False)  # of the file as it is now; None: missing

    @property
    def name(self) -> str:
        return self.key.rsplit("/", 1)[-1]

    @property
    def is_readable(self) -> bool:
        return self.rows_found is not None


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
    recipes: Mapping[str, str]  # digest of the recipe of each version whose rows may be in `whole`
    connection: duckdb.DuckDBPyConnection = field(repr=False)
    graders: Sequence[Grader] = ()
    judged: Judged | None = None  # the judge's scores; None when the job has no judge, or it was not asked

    def count(self, query: str) -> int:
        """The first number of a query's answer."""
        rows = self.connection.execute(query).fetchall()  # an answer not fetched to its end would block what comes next
        return int(rows[0][0]) if rows and rows[0][0] is not None else 0

    def texts(self, query: str) -> tuple[str, ...]:
        """The first column of a query's answer, as text; at most EXAMPLES."""
        rows = self.connection.execute(f"SELECT * FROM ({query}) LIMIT {EXAMPLES}").fetchall()
        return tuple(str(row[0]) for row in rows)


def is_typed(found: pa.Schema, field: pa.Field) -> bool:
    """Whether a file holds a column with its type; a dictionary is a way of storing it."""
    return bool(without_dictionaries(found.field(field.name).type) == without_dictionaries(field.type))


def without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """The type of the values: dictionary encoding, also inside of lists and structs, is a way of storing them."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_dictionaries(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(without_dictionaries(kind.key_type), without_dictionaries(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_dictionaries(kind.value_type)))
    return kind
