"""Coverage: results + dead letters are exactly the snapshot (invariant I4).

Catches a missing record, a record with two rows, a row that is in no snapshot, a shard that is not
sealed, and a sealed file that is not the one that was recorded. Says nothing about what the answers
are worth.
"""

from __future__ import annotations

from batch_assets.core.sql_text import quote_name
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import Evidence

_SETTLED = "SELECT {id}::VARCHAR AS id FROM results UNION ALL SELECT record_id FROM dead_letters"


def coverage(evidence: Evidence) -> Verdict:
    """Both anti-joins are empty, no id has two outcomes, every sealed file is as recorded."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    settled = _SETTLED.format(id=record_id)
    missing = f"SELECT {record_id}::VARCHAR AS id FROM snapshot EXCEPT SELECT id FROM ({settled})"
    unknown = f"SELECT id FROM ({settled}) EXCEPT SELECT {record_id}::VARCHAR FROM snapshot"
    doubled = f"SELECT id FROM ({settled}) GROUP BY id HAVING count(*) > 1"
    altered = [shard.key.rsplit("/", 1)[-1] for shard in evidence.sealed if shard.digest() != shard.sha256]
    numbers = {
        "records": evidence.version.records,
        "results": evidence.count("SELECT count(*) FROM results"),
        "dead_letters": evidence.count("SELECT count(*) FROM dead_letters"),
        "missing": evidence.count(f"SELECT count(*) FROM ({missing})"),
        "unknown": evidence.count(f"SELECT count(*) FROM ({unknown})"),
        "doubled": evidence.count(f"SELECT count(*) FROM ({doubled})"),
        "shards_sealed": len(evidence.sealed),
        "shards": evidence.version.shards,
        "files_altered": len(altered),
    }
    faults = [
        f"{numbers[name]:,} {name}" for name in ("missing", "unknown", "doubled", "files_altered") if numbers[name]
    ]
    if numbers["shards_sealed"] != numbers["shards"]:
        faults.append(f"{numbers['shards'] - numbers['shards_sealed']:,} shards not sealed")
    examples = next(
        (found for query in (missing, unknown, doubled) if (found := evidence.texts(query))), tuple(altered)
    )
    whole = (
        f"{numbers['results']:,} results + {numbers['dead_letters']:,} dead letters = {numbers['records']:,} records"
    )
    return Verdict(
        check="coverage",
        passed=not faults,
        blocking=True,
        summary=", ".join(faults) if faults else whole,
        numbers=numbers,
        thresholds={"missing": 0, "unknown": 0, "doubled": 0, "files_altered": 0},
        example_ids=examples,
    )
