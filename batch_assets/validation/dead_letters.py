"""Dead letters: how many records were given up, why, and whether they are of one kind.

Catches a rate above the threshold, and a kind of input that fails as a kind while the overall rate is
low: a record class, a script of writing, or a length whose rate is several times that of all other
records and beyond chance (Fisher's exact test, divided among all kinds looked at). Rates are of the
snapshot's records. The script is a guess at the language: the first of a list that has two letters in a
row in the text, so an English ticket that quotes Russian counts as Cyrillic. Cannot tell apart what no
column and none of these guesses tells apart, nor whether a record that was answered should have been.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batch_assets.core.noise import hypergeometric_tail
from batch_assets.core.quoting import plain_words
from batch_assets.core.sql_text import quote_name
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import Evidence

SCRIPTS = (
    "Arabic", "Hebrew", "Thai", "Devanagari", "Bengali", "Tamil", "Telugu", "Gujarati", "Gurmukhi", "Kannada", "Malayalam",
    "Sinhala", "Khmer", "Lao", "Myanmar", "Georgian", "Armenian", "Ethiopic", "Hangul", "Hiragana", "Katakana", "Han",
    "Greek", "Cyrillic", "Latin",
)  # fmt: skip
KINDS_MAX = 200  # of each dimension, by dead letters
_DIMENSIONS = {"class": "record class", "script": "script", "band": "length"}
# The length itself is their cause, so that they share a length says nothing.
_BY_LENGTH = ("input_too_long", "empty_input")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Records that have something in common."""

    dimension: str
    name: str
    records: int
    dead: int
    reason: str  # the most frequent


def dead_letters(evidence: Evidence) -> Verdict:
    """Rate over all records, counts by reason, and the kinds of input that fail as a kind."""
    gate = evidence.gate.dead_letters
    by_reason = evidence.connection.execute(
        "SELECT reason, count(*) AS n FROM dead_letters GROUP BY reason ORDER BY n DESC, reason"
    ).fetchall()
    total, records = sum(count for _, count in by_reason), evidence.version.records
    rate = total / records if records else 0.0  # a night that only removes has no records
    reasons = ", ".join(f"{count} {reason}" for reason, count in by_reason)
    summary = f"{total:,} of {records:,} records ({rate:.2%}; at most {gate.rate_max:.2%} allowed)"
    numbers: dict[str, Any] = {
        "dead_letters": total,
        "rate": round(rate, 6),
        "by_reason": {str(reason): int(count) for reason, count in by_reason},
    }
    clusters: list[Kind] = []
    examples = evidence.texts("SELECT record_id FROM dead_letters ORDER BY record_id")
    if total:
        kinds = _kinds(evidence)
        clusters = _clusters(evidence, kinds)
        numbers["by_class"] = {kind.name: _rates(kind) for kind in kinds if kind.dimension == "class"}
        numbers["by_script"] = {kind.name: _rates(kind) for kind in kinds if kind.dimension == "script"}
    if clusters:
        numbers["clusters"] = [
            {"kind": _DIMENSIONS[one.dimension], "name": one.name, "mostly": one.reason, **_rates(one)}
            for one in clusters
        ]
        examples = _examples(evidence, clusters[0])
    said = [summary + (f": {reasons}" if reasons else ""), *(_said(one, total, records) for one in clusters[:3])]
    return Verdict(
        check="dead_letters",
        passed=rate <= gate.rate_max and not clusters,
        blocking=gate.blocking,
        summary="; ".join(said),
        numbers=numbers,
        thresholds={
            "rate_max": gate.rate_max,
            "cluster_ratio_max": gate.cluster_ratio_max,
            "cluster_min": gate.cluster_min,
        },
        example_ids=examples,
    )


def _clusters(evidence: Evidence, kinds: list[Kind]) -> list[Kind]:
    """Kinds whose rate is too many times that of all other records, the worst first."""
    gate = evidence.gate.dead_letters
    if gate.cluster_ratio_max is None:
        return []
    alarms, found = gate.false_alarms / max(len(kinds), 1), []
    totals = {"band": sum(kind.dead for kind in kinds if kind.dimension == "band")}
    total = sum(kind.dead for kind in kinds if kind.dimension == "script")
    for kind in kinds:
        dead, records = totals.get(kind.dimension, total), evidence.version.records
        ratio = _ratio(kind, dead, records)
        if kind.dead < gate.cluster_min or kind.records == records or ratio <= gate.cluster_ratio_max:
            continue
        chance = hypergeometric_tail(kind.dead, kind.records, dead, records)
        if chance < alarms:
            found.append((chance, -ratio, kind))
    return [kind for _, _, kind in sorted(found, key=lambda one: one[:2])]


def _ratio(kind: Kind, dead: int, records: int) -> float:
    """Rate of the kind over the rate of all others."""
    others = max(dead - kind.dead, 0) / max(records - kind.records, 1)
    return float("inf") if others == 0 else kind.dead / kind.records / others


def _kinds(evidence: Evidence) -> list[Kind]:
    """Records and dead letters by class, script and length: one pass over the snapshot's texts."""
    by_length = ", ".join(f"'{reason}'" for reason in _BY_LENGTH)
    rows = evidence.connection.execute(
        f"""
        WITH counted AS (
            SELECT class, script, band, reason, count(*) AS n
            FROM ({_inputs(evidence)}) AS input
            LEFT JOIN (SELECT record_id, min(reason) AS reason FROM dead_letters GROUP BY record_id) AS letter
            ON letter.record_id = input.id
            GROUP BY GROUPING SETS ((class, reason), (script, reason), (band, reason))
        ),
        kinds AS (
            SELECT CASE WHEN script IS NOT NULL THEN 'script' WHEN band IS NOT NULL THEN 'band' ELSE 'class' END AS dimension,
                   coalesce(script, band::VARCHAR, class, '(null)') AS name, sum(n)::BIGINT AS records,
                   coalesce(sum(n) FILTER (reason IS NOT NULL AND (band IS NULL OR reason NOT IN ({by_length}))), 0)::BIGINT
                       AS dead,
                   coalesce(arg_max(reason, n) FILTER (reason IS NOT NULL), '') AS reason
            FROM counted GROUP BY ALL
        )
        SELECT * FROM kinds QUALIFY row_number() OVER (PARTITION BY dimension ORDER BY dead DESC, name) <= {KINDS_MAX}
        ORDER BY dead DESC, dimension, name
        """
    ).fetchall()
    kinds = [
        Kind(dimension=row[0], name=str(row[1]), records=int(row[2]), dead=int(row[3]), reason=row[4]) for row in rows
    ]
    return [kind for kind in kinds if kind.dimension != "class" or evidence.version.snapshot.record_class is not None]


def _inputs(evidence: Evidence) -> str:
    """id, class, script and length band of every record.

    A text with one byte per letter has no script but Latin; the others are searched.
    """
    pin = evidence.version.snapshot
    text = f"concat_ws(' ', {', '.join(quote_name(name) + '::VARCHAR' for name in pin.text)})"
    record_class = (
        "'all'" if pin.record_class is None else f"coalesce({quote_name(pin.record_class)}::VARCHAR, '(null)')"
    )
    scripts = " ".join(f"WHEN regexp_matches(text, '\\p{{{name}}}{{2}}') THEN '{name}'" for name in SCRIPTS)
    ascii_ = "CASE WHEN regexp_matches(text, '[A-Za-z]{2}') THEN 'Latin' ELSE 'none' END"
    return f"""
        SELECT id, class, floor(log2(greatest(length(text), 1)))::BIGINT AS band,
               CASE WHEN strlen(text) = length(text) THEN {ascii_} {scripts} ELSE 'other' END AS script
        FROM (SELECT {quote_name(pin.record_id)}::VARCHAR AS id, {record_class} AS class, {text} AS text FROM snapshot)
    """


def _examples(evidence: Evidence, kind: Kind) -> tuple[str, ...]:
    rows = evidence.connection.execute(
        f"""
        SELECT id FROM ({_inputs(evidence)}) SEMI JOIN dead_letters ON dead_letters.record_id = id
        WHERE {kind.dimension}::VARCHAR = $name ORDER BY id LIMIT 10
        """,
        {"name": kind.name},
    ).fetchall()
    return tuple(str(row[0]) for row in rows)


def _rates(kind: Kind) -> dict[str, Any]:
    return {"records": kind.records, "dead_letters": kind.dead, "rate": round(kind.dead / kind.records, 6)}


def _said(kind: Kind, total: int, records: int) -> str:
    name = plain_words(kind.name)
    if kind.dimension == "band":
        name = f"of {2 ** int(kind.name):,} to {2 ** (int(kind.name) + 1) - 1:,} characters"
    others = max(total - kind.dead, 0) / max(records - kind.records, 1)
    return (
        f"{_DIMENSIONS[kind.dimension]} {name} fails as a kind: {kind.dead:,} of {kind.records:,} "
        f"({kind.dead / kind.records:.1%}; all others {others:.2%}), mostly {kind.reason}"
    )
