"""Schema: every row of every sealed file satisfies the output schema.

Catches a column that is missing or of another type, a null where none may be, a value outside of its
enum, bounds, length or pattern, a nested value or list item that the model refuses, and a record id
with two rows anywhere in the version. Types are compared with Arrow, uniqueness by one aggregation over
the version, everything else with pandera, some thousand rows at a time: memory is bounded by a piece,
not by a file. Cannot tell whether a valid answer is a good one, and does not run validators of the
whole model, which saw the answer when it was stored. Always blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd
import pandera.errors
import pandera.pandas as pa
import pyarrow as arrow
import pyarrow.parquet as pq

from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import EXAMPLES, Evidence, SealedShard
from batch_assets.validation.table_schema import table_schema
from batch_assets.validation.tally import tally

PIECE_ROWS = 20_000
PIECE_BYTES = 16 * 1024 * 1024  # before compression; long texts come in smaller pieces


@dataclass
class _Found:
    """Violations so far, by column and rule."""

    rows: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    examples: dict[str, None] = field(default_factory=dict)  # in the order found, each once

    def add(self, violations: dict[str, int], ids: list[object]) -> None:
        self.violations.update(violations)
        self.examples.update(dict.fromkeys(str(one) for one in ids[: EXAMPLES - len(self.examples)]))


def schema(evidence: Evidence) -> Verdict:
    """Violations by column and rule; none are allowed."""
    record_id = evidence.version.snapshot.record_id
    rules = table_schema(evidence.model, record_id).update_column(record_id, unique=False)
    found = _Found()
    for shard in evidence.sealed:
        if shard.is_readable:
            _check_file(shard, rules, evidence, found)
        else:
            found.add({"file: missing or damaged": 1}, [])
    doubled = f"FROM {tally(evidence)} WHERE answered > 1"
    if rows := evidence.count(f"SELECT count(*) {doubled}"):
        found.add({f"{record_id}: unique": rows}, list(evidence.texts(f"SELECT id {doubled} ORDER BY id")))
    total = found.violations.total()
    worst = ", ".join(f"{name} ({count:,})" for name, count in found.violations.most_common(3))
    return Verdict(
        check="schema",
        passed=total == 0,
        blocking=True,
        summary=f"{total:,} violations: {worst}"
        if total
        else f"all {found.rows:,} rows satisfy {evidence.model.__name__}",
        numbers={
            "rows": found.rows,
            "violations": total,
            **{f"violations: {name}": count for name, count in found.violations.items()},
        },
        thresholds={"violations": 0},
        example_ids=tuple(found.examples),
    )


def _check_file(shard: SealedShard, rules: pa.DataFrameSchema, evidence: Evidence, found: _Found) -> None:
    """A column of another type is a violation of the file; the others are looked at nevertheless."""
    record_id = evidence.version.snapshot.record_id
    # What earlier releases sealed lacks columns of ours that may be null.
    lacking = {name for name in shard.columns_missing if not _may_lack(evidence.sealed_schema.field(name))}
    wrong = [*lacking, *shard.columns_mistyped]
    rules = rules.remove_columns([name for name in wrong if name in rules.columns])
    nonnull = [
        one.name
        for one in evidence.sealed_schema
        if not one.nullable and one.name not in rules.columns and one.name not in wrong
    ]
    try:
        for number, piece in enumerate(_pieces(shard, [*dict.fromkeys([record_id, *rules.columns, *nonnull])])):
            if number == 0 and wrong:
                ids = piece.column(record_id).slice(0, EXAMPLES).to_pylist() if record_id not in lacking else []
                found.add({f"{name}: type": 1 for name in wrong}, ids)
            _check_piece(piece, rules, nonnull, record_id, found)
            found.rows += piece.num_rows
    except (arrow.ArrowException, OSError, UnicodeDecodeError):
        found.add({"file: missing or damaged": 1}, [])


def _may_lack(column: arrow.Field) -> bool:
    return bool(column.nullable) and column.name.startswith("_")


def _pieces(shard: SealedShard, columns: list[str]) -> Iterator[arrow.RecordBatch]:
    with shard.open() as opened, pq.ParquetFile(opened) as file:
        metadata = file.metadata
        size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        rows = min(PIECE_ROWS, PIECE_BYTES * max(metadata.num_rows, 1) // max(size, 1) + 1)
        present = [name for name in columns if name in file.schema_arrow.names]
        yield from file.iter_batches(batch_size=rows, columns=present)


def _check_piece(
    piece: arrow.RecordBatch, rules: pa.DataFrameSchema, nonnull: list[str], record_id: str, found: _Found
) -> None:
    # Python objects, not numpy: a missing integer stays None instead of turning the column to floats.
    columns = {name: piece.column(name).to_pylist(maps_as_pydicts="strict") for name in rules.columns}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    for name in nonnull:
        if nulls := piece.column(name).null_count:
            ids = piece.column(record_id).filter(piece.column(name).is_null()).slice(0, EXAMPLES).to_pylist()
            found.add({f"{name}: not_nullable": nulls}, ids)
    try:
        rules.validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as error:
        cases = error.failure_cases
        bad_rows = sorted({int(row) for row in cases["index"].dropna()})[:EXAMPLES]
        ids = piece.column(record_id).take(bad_rows).to_pylist()
        found.add(dict(Counter(f"{case.column}: {case.check}" for case in cases.itertuples())), ids)
