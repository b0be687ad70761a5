"""The sample that is graded: the records whose hash with the seed is smallest.

It depends on record ids and seed alone, so every version of one snapshot is graded on the same
records. Records without a result have no grade; the dead letters have a check of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batch_assets.core.sql_text import quote_name
from batch_assets.validation.evidence import Evidence

Row = Mapping[str, Any]
ORIGINS = ("_engine", "_record_class")  # who computed a result, and what its record is


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One result of the sample."""

    record_id: str
    record: Row  # all of the snapshot's columns
    result: Row  # the output schema's fields
    published: Row | None  # the fields that readers see now for the same record id
    origin: Mapping[str, str | None] = field(default_factory=dict)  # of ORIGINS, those that the table has


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The results to be graded, in the order of the hash."""

    rows: tuple[Sampled, ...]
    records: int  # drawn, with those that have no result
    population: int  # results of the version

    def first(self, count: int) -> Sample:
        """As if fewer records had been drawn, save that those without a result are not counted again."""
        rows = self.rows[:count]
        return Sample(rows=rows, records=len(rows), population=self.population)


def draw_sample(evidence: Evidence, size: int) -> Sample:
    """The results of the `size` records that the seed picks; out of core, save for the sample itself."""
    gate = evidence.gate.evaluation
    seed = 0 if gate is None else gate.sample_seed
    record_id = quote_name(evidence.version.snapshot.record_id)
    # DuckDB's own hash may change between its releases; md5 does not.
    evidence.connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE graded AS
        SELECT {record_id} AS id, md5_number('{seed}:' || {record_id}::VARCHAR) AS place
        FROM snapshot ORDER BY place, id LIMIT {size}
        """
    )
    fields = list(evidence.model.model_fields)
    results = _rows_of(evidence, "results", fields)
    known = [name for name in ORIGINS if name in columns_of(evidence, "results")]
    origins = _rows_of(evidence, "results", known)
    records = _records(evidence) if results else {}
    # The records of an incremental version have changed: what readers see is an answer to another text.
    is_comparable = has_baseline(evidence) and evidence.version.changes is None
    published = _rows_of(evidence, "baseline", fields) if is_comparable else {}
    rows = tuple(
        Sampled(
            record_id=str(id_), record=record, result=results[id_], published=published.get(id_), origin=origins[id_]
        )
        for id_, record in records.items()
        if id_ in results
    )
    return Sample(
        rows=rows,
        records=evidence.count("SELECT count(*) FROM graded"),
        population=evidence.count("SELECT count(*) FROM results"),
    )


def has_baseline(evidence: Evidence) -> bool:
    """Whether readers see another version now, to compare with."""
    return evidence.baseline_version not in (None, evidence.version.id)


def _records(evidence: Evidence) -> dict[Any, Row]:
    """The sampled records by id, in the order of the sample."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    return _fetched(
        evidence,
        f"SELECT graded.id, snapshot.* EXCLUDE (__row) FROM snapshot JOIN graded ON snapshot.{record_id} = graded.id "
        "ORDER BY graded.place, graded.id",
    )


def _rows_of(evidence: Evidence, table: str, fields: Iterable[str]) -> dict[Any, Row]:
    """The sampled rows of a table of results by id; nothing when it lacks one of the fields."""
    known = columns_of(evidence, table)
    if not known.issuperset(fields):
        return {}
    record_id = quote_name(evidence.version.snapshot.record_id)
    names = ", ".join(f"{table}.{quote_name(field)}" for field in fields)
    return _fetched(
        evidence,
        f"SELECT {table}.{record_id}, {names} FROM {table} SEMI JOIN graded ON {table}.{record_id} = graded.id",
    )


def _fetched(evidence: Evidence, query: str) -> dict[Any, Row]:
    """The first column of each row → the others by name."""
    found = evidence.connection.execute(query)
    names = [column[0] for column in found.description or ()][1:]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in found.fetchall()}


def columns_of(evidence: Evidence, table: str) -> set[str]:
    """The columns of a view."""
    return {str(row[0]) for row in evidence.connection.execute(f"DESCRIBE {table}").fetchall()}
