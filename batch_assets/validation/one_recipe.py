"""One recipe: every row comes from one snapshot, model, prompt, decoding and output schema (invariant I2).

A version's id is a digest over all of these, and each row carries the id of the version that answered
it; the version file was read again and matched its digest. Catches a row of another version slipped in,
a row in a file of another shard, and a file under another version's name. The rows that an incremental
version takes from its base have the base's id, whose recipe must be the same but for the snapshot's
content. Engine versions and hardware may differ: they are counted, with the category distribution under
each. Cannot tell whether the engine did what the recipe says. Always blocks.
"""

from __future__ import annotations

from typing import Any

from batch_assets.core.quoting import plain_words
from batch_assets.core.sql_text import quote_name, quote_text
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evidence import EXAMPLES, Evidence, SealedShard

ENGINES_MAX = 20
_PER_ENGINE = 20  # categories shown for each


def one_recipe(evidence: Evidence) -> Verdict:
    """The row's own version id is this version's, or that of a version with the same recipe."""
    versions = _versions(evidence)
    foreign = {name: rows for name, rows in versions.items() if not _is_ours(evidence, name)}
    misplaced = _misplaced(evidence)
    misnamed = [shard.name for shard in evidence.sealed if not _is_named_after(evidence, shard)]
    engines = _engines(evidence)
    faults = [f"{sum(foreign.values()):,} rows of another recipe ({_names(foreign)})"] if foreign else []
    faults += [f"{misplaced:,} rows in files of another shard"] if misplaced else []
    faults += [f"{len(misnamed):,} files under another version's name"] if misnamed else []
    kinds = f"{len(engines):,} kind{'s' if len(engines) != 1 else ''} of engine"
    return Verdict(
        check="one_recipe",
        passed=not faults,
        blocking=True,
        summary=", ".join(faults) or f"{sum(versions.values()):,} rows of one recipe, by {kinds}",
        numbers={
            "recipe": evidence.version.recipe_digest,
            "rows": sum(versions.values()),
            "foreign": sum(foreign.values()),
            "misplaced": misplaced,
            "files_misnamed": len(misnamed),
            "versions": versions,
            "engines": engines,
        },
        thresholds={"foreign": 0, "misplaced": 0, "files_misnamed": 0},
        example_ids=_examples(evidence, foreign, misplaced) or tuple(misnamed)[:EXAMPLES],
    )


def _versions(evidence: Evidence) -> dict[str, int]:
    rows = evidence.connection.execute(
        "SELECT coalesce(_job_version, '(null)'), count(*) AS n FROM whole GROUP BY 1 ORDER BY n DESC, 1 LIMIT 1000"
    ).fetchall()
    return {str(name): int(count) for name, count in rows}


def _is_ours(evidence: Evidence, job_version: str) -> bool:
    return evidence.recipes.get(job_version) == evidence.version.recipe_digest


def _is_named_after(evidence: Evidence, shard: SealedShard) -> bool:
    return shard.key.rsplit("/", 2)[-2:-1] == [evidence.version.id]


def _shards(evidence: Evidence) -> str:
    pairs = ", ".join(f"({quote_text(shard.uri)}, {shard.shard})" for shard in evidence.sealed)
    return f"(VALUES {pairs}) AS file(uri, shard)"


def _wrongly_placed(evidence: Evidence) -> str:
    """Sealed rows that carry another shard than their file's, or the id that only rows of the base may have."""
    others = [quote_text(name) for name in evidence.recipes if name != evidence.version.id]
    of_base = f"OR results._job_version IN ({', '.join(others)})" if others else ""
    return f"""
        FROM results JOIN {_shards(evidence)} ON file.uri = results._file
        WHERE results._shard IS DISTINCT FROM file.shard {of_base}
    """


def _misplaced(evidence: Evidence) -> int:
    return evidence.count(f"SELECT count(*) {_wrongly_placed(evidence)}") if evidence.sealed else 0


def _examples(evidence: Evidence, foreign: dict[str, int], misplaced: int) -> tuple[str, ...]:
    record_id = quote_name(evidence.version.snapshot.record_id)
    if foreign:
        ours = [quote_text(name) for name in evidence.recipes if _is_ours(evidence, name)]
        is_ours = f"coalesce(_job_version IN ({', '.join(ours)}), false)" if ours else "false"
        return evidence.texts(f"SELECT {record_id} FROM whole WHERE NOT {is_ours} ORDER BY 1")
    if misplaced:
        return evidence.texts(f"SELECT results.{record_id} {_wrongly_placed(evidence)} ORDER BY 1")
    return ()


def _engines(evidence: Evidence) -> dict[str, Any]:
    """Rows by engine and hardware, and the shares of the categories under each."""
    category = "NULL" if evidence.category_field is None else f"{quote_name(evidence.category_field)}::VARCHAR"
    rows = evidence.connection.execute(
        f"""
        WITH counted AS (
            SELECT coalesce(_engine, '(null)') AS engine, coalesce({category}, '(null)') AS category, count(*) AS n
            FROM whole GROUP BY ALL
        ),
        ranked AS (
            SELECT *, sum(n) OVER (PARTITION BY engine) AS total,
                   row_number() OVER (PARTITION BY engine ORDER BY n DESC, category) AS rank
            FROM counted
        )
        SELECT engine, total::BIGINT, category, n FROM ranked WHERE rank <= {_PER_ENGINE}
        ORDER BY total DESC, engine, rank LIMIT {ENGINES_MAX * _PER_ENGINE}
        """
    ).fetchall()
    engines: dict[str, Any] = {}
    for engine, total, name, count in rows:
        known = engines.setdefault(str(engine), {"rows": int(total), "shares": {}})
        if evidence.category_field is not None:
            known["shares"][str(name)] = round(int(count) / int(total), 6)
    return engines


def _names(foreign: dict[str, int]) -> str:
    return ", ".join(plain_words(name) for name in list(foreign)[:3])
