"""Coverage: results + dead letters are exactly the snapshot (invariant I4).

Catches a missing record, a record with two outcomes, an outcome of no record, a shard that is not
sealed, and a sealed file that is not the one recorded or has another number of rows. Exact, by ids and
not by counts, out of core. Says nothing about what the answers are worth. Always blocks.
"""

from __future__ import annotations

from typing import Any

from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import EXAMPLES, Evidence
from batch_assets.validation.merged import FAULTS as MERGE_FAULTS
from batch_assets.validation.merged import merged_examples, merged_numbers
from batch_assets.validation.tally import tally

# Of the rows of `uneven_ids`: what is wrong with an id, and how it is said.
_FAULTS = {
    "missing": "asked > 0 AND answered + given_up = 0",
    "unknown": "asked = 0",
    "doubled": "answered + given_up > 1 OR asked > 1",
}


def coverage(evidence: Evidence) -> Verdict:
    """Both anti-joins are empty, no id has two outcomes, every sealed file is as recorded."""
    uneven = tally(evidence)
    counts = ", ".join(f"count(*) FILTER ({rule}) AS {name}" for name, rule in _FAULTS.items())
    (row,) = evidence.connection.execute(f"SELECT {counts} FROM {uneven}").fetchall()
    found = dict(zip(_FAULTS, map(int, row), strict=True))
    altered = [shard.name for shard in evidence.sealed if shard.digest() != shard.sha256]
    miscounted = [shard.name for shard in evidence.sealed if shard.rows_found not in (shard.rows, None)]
    unlike = len({shard.columns_missing for shard in evidence.sealed if shard.is_readable}) > 1
    numbers: dict[str, Any] = {
        "records": evidence.version.records,
        "results": evidence.count("SELECT count(*) FROM results"),
        "dead_letters": evidence.count("SELECT count(*) FROM dead_letters"),
        **found,
        "shards_sealed": len(evidence.sealed),
        "shards": evidence.version.shards,
        "files_altered": len(altered),
        "files_miscounted": len(miscounted),
        "files_unreadable": sum(not shard.is_readable for shard in evidence.sealed),
    }
    faults = [f"{numbers[name]:,} {name}" for name in (*_FAULTS, "files_altered", "files_miscounted") if numbers[name]]
    if numbers["shards_sealed"] != numbers["shards"]:
        faults.append(f"{numbers['shards'] - numbers['shards_sealed']:,} shards not sealed")
    if unlike:
        faults.append("some files have a column that others lack, which readers cannot open as one table")
    merged = merged_numbers(evidence) if evidence.version.changes is not None else {}
    faults += [f"{merged[name]:,} {name} in the merged whole" for name in MERGE_FAULTS if merged.get(name)]
    files = list(dict.fromkeys([*altered, *miscounted]))[:EXAMPLES]
    if files:
        faults.append(f"the first file is {files[0]}")
    whole = (
        f"{numbers['results']:,} results + {numbers['dead_letters']:,} dead letters = {numbers['records']:,} records"
    )
    if merged:
        numbers["merged"] = merged
        whole += f"; with the base {merged['rows']:,} rows and {merged['dead_letters']:,} dead letters"
    return Verdict(
        check="coverage",
        passed=not faults,
        blocking=True,
        summary=", ".join(faults) if faults else whole,
        numbers={**numbers, "files": files} if files else numbers,
        thresholds=dict.fromkeys((*_FAULTS, "files_altered", "files_miscounted"), 0),
        example_ids=_examples(evidence, uneven, found) or (merged_examples(evidence) if merged else ()) or tuple(files),
    )


def _examples(evidence: Evidence, uneven: str, found: dict[str, int]) -> tuple[str, ...]:
    """Ids of the first kind of fault that there is."""
    for name, rule in _FAULTS.items():
        if found[name]:
            return evidence.texts(f"SELECT coalesce(id, '(null)') FROM {uneven} WHERE {rule} ORDER BY id")
    return ()
