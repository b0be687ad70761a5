"""Counts over the rows that readers would see (`whole`) and those that they see now (`baseline`).

What comes back is small whatever the number of rows: at most CATEGORIES_MAX categories and CLASSES_MAX
record classes have a line of their own, all others share one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from batch_assets.core.noise import Counts
from batch_assets.core.sql_text import quote_name
from batch_assets.validation.evidence import Evidence

CATEGORIES_MAX = 100
CLASSES_MAX = 50
NULL, OTHER = "(null)", "(other)"
_BINS_EXACT = 256  # lengths up to here are told apart; beyond, a bin is a sixteenth of an octave


def columns_of(evidence: Evidence, table: str) -> dict[str, str]:
    """Column names of a view, and their DuckDB types."""
    return {str(row[0]): str(row[1]) for row in evidence.connection.execute(f"DESCRIBE {table}").fetchall()}


def distribution(evidence: Evidence, table: str, field: str) -> dict[str, int]:
    """Rows per category, the most frequent first; the rare ones of very many as one."""
    value = f"coalesce({quote_name(field)}::VARCHAR, '{NULL}')"
    rows = evidence.connection.execute(
        f"SELECT {value} AS category, count(*) AS n FROM {table} GROUP BY 1 ORDER BY n DESC, 1 LIMIT {CATEGORIES_MAX}"
    ).fetchall()
    counts = {str(category): int(count) for category, count in rows}
    if len(counts) == CATEGORIES_MAX:
        rest = evidence.count(f"SELECT count(*) FROM {table}") - sum(counts.values())
        counts |= {OTHER: counts.get(OTHER, 0) + rest} if rest else {}
    return counts


@dataclass(frozen=True, kw_only=True)
class TwoSides:
    """Counts by (record class, category) on both sides, and by (class, before, after) of shared records."""

    before: Mapping[tuple[str | None, str], int]
    after: Mapping[tuple[str | None, str], int]
    pairs: Mapping[tuple[str | None, str, str], int]
    null_pairs: Mapping[str, tuple[int, int, int]]  # by optional field: null before, after, in both

    @property
    def classes(self) -> list[str]:
        """The record classes that are named, in order."""
        return sorted({key[0] for key in [*self.before, *self.after] if key[0] is not None})

    def of_class(self, name: str) -> TwoSides:
        """The records of one class; of a baseline that does not tell classes, those that are on both sides."""
        pairs = {key: n for key, n in self.pairs.items() if key[0] == name}
        before = Counter({key: n for key, n in self.before.items() if key[0] == name})
        if not before:
            for (_, was, _), n in pairs.items():
                before[name, was] += n
        after = {key: n for key, n in self.after.items() if key[0] == name}
        return TwoSides(before=before, after=after, pairs=pairs, null_pairs={})

    def counts(self) -> dict[str, Counts]:
        """For each category, how many records have it on each side and on both."""
        before, after = _by_category(self.before), _by_category(self.after)
        paired_before, paired_after, both = Counter[str](), Counter[str](), Counter[str]()
        for (_, was, is_), n in self.pairs.items():
            paired_before[was] += n
            paired_after[is_] += n
            both[was] += n if was == is_ else 0
        sizes = {"before": before.total(), "after": after.total(), "pairs": paired_before.total()}
        return {
            name: Counts(
                **sizes,
                before_with=before[name],
                after_with=after[name],
                pairs_before_with=paired_before[name],
                pairs_after_with=paired_after[name],
                pairs_both_with=both[name],
            )
            for name in sorted({*before, *after})
        }

    def churn(self) -> dict[str, float | int | None]:
        """Of the records that both versions answered, how many have another category now.

        `agreement_beyond_chance` is Cohen's kappa (1960): 1 when all agree, about 0 when the answers
        have nothing to do with each other.
        """
        pairs = sum(self.pairs.values())
        if not pairs:
            return {"answered_by_both": 0, "changed": 0, "churn": None, "agreement_beyond_chance": None}
        same = sum(n for (_, was, is_), n in self.pairs.items() if was == is_)
        was, is_ = Counter[str](), Counter[str]()
        for (_, old, new), n in self.pairs.items():
            was[old] += n
            is_[new] += n
        chance = sum(was[name] * is_[name] for name in was) / pairs**2
        kappa = None if chance == 1 else round((same / pairs - chance) / (1 - chance), 4)
        return {
            "answered_by_both": pairs,
            "changed": pairs - same,
            "churn": round(1 - same / pairs, 6),
            "agreement_beyond_chance": kappa,
        }


def two_sides(evidence: Evidence, field: str, kept: Sequence[str], optional: Sequence[str]) -> TwoSides:
    """Count categories on each side, and join the sides once by record id.

    The join is on a 64-bit hash of the id: the chance that it mixes up one pair among 50 million is
    about one in ten thousand, and one pair is nothing here.
    """
    connection = evidence.connection
    connection.execute("CREATE OR REPLACE TEMP TABLE kept_categories (category VARCHAR)")
    connection.executemany("INSERT INTO kept_categories VALUES (?)", [[name] for name in kept])
    for table in ("baseline", "whole"):
        _create_side(evidence, table, field, optional)
    sides: dict[str, dict[tuple[str | None, str], int]] = {}
    for table in ("baseline", "whole"):
        rows = connection.execute(f"SELECT class, category, count(*) FROM {table}_side GROUP BY ALL").fetchall()
        sides[table] = {(name, str(category)): int(n) for name, category, n in rows}
    nulls = "".join(
        f", sum(b.null_{n}::INT), sum(w.null_{n}::INT), sum((b.null_{n} AND w.null_{n})::INT)"
        for n in range(len(optional))
    )
    joined = connection.execute(
        f"""
        SELECT coalesce(w.class, b.class), b.category, w.category, count(*){nulls}
        FROM whole_side AS w JOIN baseline_side AS b ON w.id = b.id GROUP BY ALL
        """
    ).fetchall()
    return TwoSides(
        before=sides["baseline"],
        after=sides["whole"],
        pairs={(row[0], str(row[1]), str(row[2])): int(row[3]) for row in joined},
        null_pairs={
            name: (
                sum(int(row[4 + 3 * n]) for row in joined),
                sum(int(row[5 + 3 * n]) for row in joined),
                sum(int(row[6 + 3 * n]) for row in joined),
            )
            for n, name in enumerate(optional)
        },
    )


def moved_ids(evidence: Evidence, category: str) -> tuple[str, ...]:
    """Records that have come to a category or left it; if none is shared by both sides, new ones in it."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    named = "SELECT {0}::VARCHAR AS name, hash({0}::VARCHAR) AS id, {1} AS category FROM whole".format(
        record_id, f"coalesce({quote_name(evidence.category_field or '')}::VARCHAR, '{NULL}')"
    )
    parameters = {"category": category}
    query = f"""
        SELECT w.name FROM ({named}) AS w JOIN baseline_side AS b ON w.id = b.id
        WHERE (w.category = $category) <> (b.category = $category) ORDER BY w.name LIMIT 10
    """
    rows = evidence.connection.execute(query, parameters).fetchall()
    if not rows:
        alone = f"SELECT name FROM ({named}) WHERE category = $category ORDER BY name LIMIT 10"
        rows = evidence.connection.execute(alone, parameters).fetchall()
    return tuple(str(row[0]) for row in rows)


def lengths(evidence: Evidence, table: str, field: str, kind: str) -> dict[int, int]:
    """Rows by length of a text (characters) or list (items), in bins; nulls are not counted."""
    size = f"{'length' if kind == 'VARCHAR' else 'len'}({quote_name(field)})"
    binned = f"CASE WHEN n < {_BINS_EXACT} THEN n ELSE floor(2 ** (floor(log2(n) * 16) / 16))::BIGINT END"
    rows = evidence.connection.execute(
        f"""
        SELECT {binned} AS bin, count(*) FROM (SELECT {size} AS n FROM {table} WHERE {quote_name(field)} IS NOT NULL)
        GROUP BY bin ORDER BY bin
        """
    ).fetchall()
    return {int(length): int(count) for length, count in rows}


def _by_category(counts: Mapping[tuple[str | None, str], int]) -> Counter[str]:
    total = Counter[str]()
    for (_, category), n in counts.items():
        total[category] += n
    return total


def _create_side(evidence: Evidence, table: str, field: str, optional: Sequence[str]) -> None:
    """View `<table>_side`: id (hashed), class, category, null_0, null_1, …"""
    present = columns_of(evidence, table)
    source, record_class = _classed(evidence, table, present)
    category = f"coalesce(rows.{quote_name(field)}::VARCHAR, '{NULL}')"
    nulls = "".join(
        f", {f'rows.{quote_name(name)} IS NULL' if name in present else 'false'} AS null_{number}"
        for number, name in enumerate(optional)
    )
    evidence.connection.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW {table}_side AS
        SELECT hash(rows.{quote_name(evidence.version.snapshot.record_id)}::VARCHAR) AS id, {record_class} AS class,
               CASE WHEN {category} IN (SELECT category FROM kept_categories) THEN {category} ELSE '{OTHER}' END AS category
               {nulls}
        FROM {source}
        """
    )


def _classed(evidence: Evidence, table: str, present: Mapping[str, str]) -> tuple[str, str]:
    """(rows, expression of their record class): the frequent classes by name, null for the others."""
    pin = evidence.version.snapshot
    if "_record_class" in present:
        source, value = f"{table} AS rows", "rows._record_class"
    elif pin.record_class is not None and table == "whole":
        record_id, name = quote_name(pin.record_id), quote_name(pin.record_class)
        source = f"{table} AS rows LEFT JOIN snapshot ON snapshot.{record_id}::VARCHAR = rows.{record_id}::VARCHAR"
        value = f"snapshot.{name}::VARCHAR"
    else:
        return f"{table} AS rows", "NULL::VARCHAR"
    evidence.connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE {table}_classes AS
        SELECT {value} AS class FROM {source} GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {CLASSES_MAX}
        """
    )
    return source, f"CASE WHEN {value} IN (SELECT class FROM {table}_classes) THEN {value} END"


def length_distance(before: Mapping[int, int], after: Mapping[int, int]) -> float:
    """Kolmogorov and Smirnov's distance: the largest difference of the two cumulative distributions."""
    old, new = sum(before.values()), sum(after.values())
    if not old or not new:
        return 0.0
    return max((abs(b / old - a / new) for b, a in _cumulated(before, after)), default=0.0)


def _cumulated(before: Mapping[int, int], after: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    old = new = 0
    for length in sorted({*before, *after}):
        old += before.get(length, 0)
        new += after.get(length, 0)
        yield old, new


def median(counts: Mapping[int, int]) -> int | None:
    """The length that half of the rows do not exceed."""
    half, seen = sum(counts.values()) / 2, 0
    for length, count in sorted(counts.items()):
        seen += count
        if seen >= half:
            return length
    return None
