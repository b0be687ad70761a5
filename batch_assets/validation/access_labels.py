"""Access labels: every result carries exactly the labels of its source record.

Catches a label that was changed, lost or added, also by a space, the case of a letter or the column's
type; a result without a source, whose labels nobody can vouch for, fails too. A result more open than
its source would show a record to people who may not see it, so this always blocks. Judges the rows that
this version sealed: those that an incremental version takes from its base were judged with it. Cannot
tell whether the source's own labels are right, nor whether an answer repeats what a label protects.
"""

from __future__ import annotations

from batch_assets.core.sql_text import quote_name
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import EXAMPLES, Evidence
from batch_assets.validation.tally import create_uneven_shards, shard_of_record, shard_of_result


def access_labels(evidence: Evidence) -> Verdict:
    """Each result's labels are those of its source record, null for null and letter for letter."""
    pin = evidence.version.snapshot
    if not pin.access_labels:
        return _verdict(True, "the snapshot pins no access labels, nothing to compare", {}, ())
    other = _as_other_type(evidence)
    differing = _differing(evidence)
    (counts,) = evidence.connection.execute(
        "SELECT count(*) FILTER (has_source), count(*) FILTER (NOT has_source), count(*) FILTER (is_open) FROM mislabelled"
    ).fetchall()
    by_label = {
        name: evidence.count(f"SELECT count(*) FROM mislabelled WHERE list_contains(labels, {number})")
        for number, name in enumerate(pin.access_labels)
    }
    numbers = {
        "rows": evidence.count("SELECT count(*) FROM results"),
        "differing": int(counts[0]),
        "without_source": int(counts[1]),
        "label_lost": int(counts[2]),
        "of_another_type": sum(other.values()),
        "by_label": by_label,
    }
    faults = [f"{int(counts[0]):,} results have other labels than their source"] if counts[0] else []
    faults += [f"{int(counts[1]):,} results have no source"] if counts[1] else []
    faults += [f"{name} is of another type in {files:,} files" for name, files in other.items()]
    ids = evidence.texts(f"SELECT id FROM ({differing}) ORDER BY NOT has_source, id")
    names = tuple(
        shard.name for shard in evidence.sealed if {*shard.columns_mistyped, *shard.columns_missing} & {*other}
    )
    summary = (
        ", ".join(faults) or f"{numbers['rows']:,} results carry the labels of their source ({', '.join(by_label)})"
    )
    return _verdict(not faults, summary, numbers, ids or names[:EXAMPLES])


def _differing(evidence: Evidence) -> str:
    """Fill `mislabelled` (id, has_source, is_open, labels by number); what it holds, as a query.

    Shards in which results and records have the same ids with the same labels are not looked at again.
    Records that were given up are taken out by id; a row that some other fault adds is found by its shard.
    """
    pin = evidence.version.snapshot
    record_id = quote_name(pin.record_id)
    labels = [*map(quote_name, pin.access_labels)]
    row = f"({', '.join([f'{record_id}::VARCHAR', *labels])})"
    answered = f"snapshot ANTI JOIN dead_letters ON dead_letters.record_id = snapshot.{record_id}::VARCHAR"
    create_uneven_shards(
        evidence,
        "mislabelled_shards",
        f"SELECT {shard_of_record(evidence)} AS shard, {row} AS value FROM {answered}",
        f"SELECT {shard_of_result()} AS shard, {row} AS value FROM results",
    )
    wrong = [f"r.{name} IS DISTINCT FROM s.{name}" for name in labels]
    lost = [f"(r.{name} IS NULL AND s.{name} IS NOT NULL)" for name in labels]
    numbers = ", ".join(f"CASE WHEN {rule} THEN {number} END" for number, rule in enumerate(wrong))
    suspect = "IN (SELECT shard FROM mislabelled_shards)"
    evidence.connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE mislabelled AS
        SELECT r.{record_id}::VARCHAR AS id, s.{record_id} IS NOT NULL AS has_source,
               s.{record_id} IS NOT NULL AND ({" OR ".join(lost)}) AS is_open, [{numbers}] AS labels
        FROM (SELECT * FROM results WHERE {shard_of_result()} {suspect}) AS r
        LEFT JOIN (SELECT * FROM snapshot WHERE {shard_of_record(evidence)} {suspect}) AS s
        ON r.{record_id}::VARCHAR = s.{record_id}::VARCHAR
        WHERE s.{record_id} IS NULL OR {" OR ".join(wrong)}
        """
    )
    return "SELECT id, has_source FROM mislabelled"


def _as_other_type(evidence: Evidence) -> dict[str, int]:
    """Per label, the files that lack it or hold it as another type: 7 and '7' are not one label."""
    found = {
        name: sum(name in (*shard.columns_missing, *shard.columns_mistyped) for shard in evidence.sealed)
        for name in evidence.version.snapshot.access_labels
    }
    return {name: files for name, files in found.items() if files}


def _verdict(passed: bool, summary: str, numbers: dict[str, object], examples: tuple[str, ...]) -> Verdict:
    return Verdict(
        check="access_labels",
        passed=passed,
        blocking=True,
        summary=summary,
        numbers=numbers,
        thresholds={"differing": 0, "without_source": 0},
        example_ids=examples,
    )
