"""Schema: every row of every sealed file satisfies the output schema.

Column types are compared with Arrow; nullability, enums, bounds, uniqueness and nested values with
pandera, one sealed file at a time, so that memory is bounded by a shard. A record id that occurs in
two files is coverage's business.
"""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pandera.errors
import pandera.pandas as pa
import pyarrow as arrow
import pyarrow.parquet as pq

from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import EXAMPLES, Evidence, SealedShard
from batch_assets.validation.table_schema import table_schema


def schema(evidence: Evidence) -> Verdict:
    """Violations by column and rule; none are allowed."""
    record_id = evidence.version.snapshot.record_id
    rules = table_schema(evidence.model, record_id)
    violations: Counter[str] = Counter()
    examples: list[str] = []
    rows = 0
    for shard in evidence.sealed:
        if not shard.is_readable:
            violations["file: missing or damaged"] += 1
            continue
        found, bad_ids, checked = _check_file(shard, rules, evidence, record_id)
        violations.update(found)
        examples.extend(bad_ids[: EXAMPLES - len(examples)])
        rows += checked
    total = sum(violations.values())
    worst = ", ".join(f"{name} ({count:,})" for name, count in violations.most_common(3))
    return Verdict(
        check="schema",
        passed=total == 0,
        blocking=True,
        summary=f"{total:,} violations: {worst}" if total else f"all {rows:,} rows satisfy {evidence.model.__name__}",
        numbers={"rows": rows, "violations": total, **{f"violations: {name}": n for name, n in violations.items()}},
        thresholds={"violations": 0},
        example_ids=tuple(examples),
    )


def _check_file(
    shard: SealedShard, rules: pa.DataFrameSchema, evidence: Evidence, record_id: str
) -> tuple[Counter[str], list[str], int]:
    with shard.open() as file:
        table = pq.read_table(file)
    wrong_types = [f"{field.name}: type" for field in evidence.sealed_schema if not _is_typed(table.schema, field)]
    if wrong_types:
        return Counter(wrong_types), [], table.num_rows
    # Python objects, not numpy: a missing integer stays None instead of turning the column to floats.
    columns = {name: table.column(name).to_pylist(maps_as_pydicts="strict") for name in rules.columns}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    try:
        rules.validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as error:
        cases = error.failure_cases
        found = Counter(f"{case.column}: {case.check}" for case in cases.itertuples())
        bad_rows = [int(row) for row in cases["index"].dropna().unique()]
        return found, [str(frame[record_id].iloc[row]) for row in bad_rows], table.num_rows
    return Counter(), [], table.num_rows


def _is_typed(found: arrow.Schema, field: arrow.Field) -> bool:
    """Whether a file has the column with its type. Files sealed by earlier releases lack the record's class."""
    if field.name not in found.names:
        return field.nullable and field.name.startswith("_")
    return bool(found.field(field.name).type == field.type)
