"""How often each record id occurs in the snapshot and among the outcomes.

One external aggregation over all ids, made once for all checks that ask; what is kept are the ids that
do not occur exactly once on both sides, of which a sound version has none.
"""

from __future__ import annotations

from batch_assets.core.sql_text import quote_name
from batch_assets.validation.evidence import Evidence

UNEVEN = "uneven_ids"  # id, asked (rows of the snapshot), answered (results), given_up (dead letters)


def tally(evidence: Evidence) -> str:
    """The name of a table of the ids whose counts are not one record and one outcome."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    evidence.connection.execute(
        f"""
        CREATE TEMP TABLE IF NOT EXISTS {UNEVEN} AS
        SELECT id, sum(a)::BIGINT AS asked, sum(r)::BIGINT AS answered, sum(d)::BIGINT AS given_up
        FROM (
            SELECT {record_id}::VARCHAR AS id, 1::UTINYINT AS a, 0::UTINYINT AS r, 0::UTINYINT AS d FROM snapshot
            UNION ALL SELECT {record_id}::VARCHAR, 0, 1, 0 FROM results
            UNION ALL SELECT record_id, 0, 0, 1 FROM dead_letters
        )
        GROUP BY id HAVING sum(a) <> 1 OR sum(r) + sum(d) <> 1
        """
    )
    return UNEVEN
