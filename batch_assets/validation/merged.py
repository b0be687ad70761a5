"""Coverage of the merged whole: what an incremental version leaves readers with, besides its own records.

The base has been judged when it was published. Here it is that base and changes fit together: no id has
two outcomes, no removed id has one, and every record of the base is still there unless it was changed or
removed.
"""

from __future__ import annotations

from batch_assets.core.sql_text import quote_name
from batch_assets.validation.evidence import Evidence

FAULTS = ("doubled", "not_removed", "lost")


def merged_numbers(evidence: Evidence) -> dict[str, int]:
    """Counts over the whole. `removed_unknown` are ids to remove that the base does not have: no fault."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    settled = _settled(record_id, "whole", "whole_dead_letters")
    of_base = _settled(record_id, "base", "base_dead_letters")
    count = evidence.count
    kept = f"SELECT count(*) FROM ({of_base}) AS base_id ANTI JOIN superseded ON base_id.id = superseded.id::VARCHAR"
    removed = f"SELECT {record_id}::VARCHAR AS id FROM removed"
    outcomes = count(f"SELECT count(*) FROM ({settled})")
    return {
        "rows": count("SELECT count(*) FROM whole"),
        "dead_letters": count("SELECT count(*) FROM whole_dead_letters"),
        "doubled": count(f"SELECT count(*) FROM ({_doubled(settled)})"),
        "not_removed": count(f"SELECT count(*) FROM ({removed}) SEMI JOIN ({settled}) AS settled USING (id)"),
        "lost": abs(count(kept) + evidence.version.records - outcomes),
        "removed": count("SELECT count(*) FROM removed"),
        "removed_unknown": count(f"SELECT count(*) FROM ({removed}) ANTI JOIN ({of_base}) AS of_base USING (id)"),
    }


def merged_examples(evidence: Evidence) -> tuple[str, ...]:
    """Ids with two outcomes, or that should have none."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    settled = _settled(record_id, "whole", "whole_dead_letters")
    removed = f"SELECT {record_id}::VARCHAR AS id FROM removed"
    wrong = f"{_doubled(settled)} UNION SELECT id FROM ({removed}) SEMI JOIN ({settled}) AS settled USING (id)"
    return evidence.texts(f"SELECT id FROM ({wrong}) ORDER BY id")


def _settled(record_id: str, rows: str, letters: str) -> str:
    return f"SELECT {record_id}::VARCHAR AS id FROM {rows} UNION ALL SELECT record_id FROM {letters}"


def _doubled(settled: str) -> str:
    return f"SELECT id FROM ({settled}) GROUP BY id HAVING count(*) > 1"
