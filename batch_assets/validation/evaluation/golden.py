"""Golden labels: how often does a version agree with what people said?

A golden record without a result (a dead letter) counts as wrong: nobody got an answer for it. Says
nothing about records that differ from the golden ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from batch_assets.core.sql_text import quote_name
from batch_assets.core.statistics import PairedChange, paired_change, wilson_interval
from batch_assets.validation.evaluation.sample import ORIGINS, columns_of, has_baseline
from batch_assets.validation.evidence import Evidence

RESAMPLES = 1000
UNSEEN = 0.5
LABELS_MAX = 30  # of the confusion matrix; rarer ones are shown as one
OTHER, NO_ANSWER = "(other)", "(no answer)"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A golden record beside its result."""

    record_id: str
    label: Any
    answer: Any
    is_answered: bool
    origin: Mapping[str, str | None]  # of ORIGINS
    published: Any
    is_published: bool  # readers have an answer to it now

    @property
    def is_right(self) -> bool:
        return self.is_answered and bool(self.answer == self.label)


@dataclass(frozen=True, kw_only=True)
class MacroF1:
    """The mean F1 of the labels, and its interval."""

    value: float
    interval: tuple[float, float]
    by_label: Mapping[str, float]


def compare(evidence: Evidence, field: str) -> list[Compared]:
    """The golden records that this version speaks of, in the order of their ids."""
    record_id = quote_name(evidence.version.snapshot.record_id)
    golden = pa.table({"id": pa.array(list(evidence.golden), pa.string())})
    evidence.connection.register("golden", golden)
    known = columns_of(evidence, "whole")
    answer, *origins = (f"whole.{quote_name(name)}" if name in known else "NULL" for name in (field, *ORIGINS))
    rows = evidence.connection.execute(
        f"""
        WITH spoken_of AS (
            SELECT golden.id FROM golden SEMI JOIN snapshot ON snapshot.{record_id}::VARCHAR = golden.id
            UNION SELECT golden.id FROM golden SEMI JOIN whole ON whole.{record_id}::VARCHAR = golden.id
            UNION SELECT golden.id FROM golden SEMI JOIN whole_dead_letters ON record_id = golden.id
        )
        SELECT DISTINCT ON (spoken_of.id)
            spoken_of.id, whole.{record_id} IS NOT NULL, {answer}, {", ".join(origins)}
        FROM spoken_of LEFT JOIN whole ON whole.{record_id}::VARCHAR = spoken_of.id
        ORDER BY spoken_of.id
        """
    ).fetchall()
    published = _published(evidence, field)
    return [
        Compared(
            record_id=id_,
            label=evidence.golden[id_],
            answer=found,
            is_answered=is_answered,
            origin=dict(zip(ORIGINS, origin, strict=True)),
            published=published.get(id_),
            is_published=id_ in published,
        )
        for id_, is_answered, found, *origin in rows
    ]


def _published(evidence: Evidence, field: str) -> dict[str, Any]:
    """What readers see now, by golden record id."""
    if not has_baseline(evidence) or field not in columns_of(evidence, "baseline"):
        return {}
    record_id = quote_name(evidence.version.snapshot.record_id)
    found = evidence.connection.execute(
        f"SELECT golden.id, baseline.{quote_name(field)} FROM golden JOIN baseline ON baseline.{record_id}::VARCHAR = golden.id"
    )
    return {str(id_): answer for id_, answer in found.fetchall()}


def change(compared: Sequence[Compared]) -> PairedChange | None:
    """Right or wrong on the records that readers have an answer to now; None when there are none."""
    pairs = [(float(one.published == one.label), float(one.is_right)) for one in compared if one.is_published]
    return paired_change(pairs) if pairs else None


def accuracy(compared: Sequence[Compared]) -> tuple[float, tuple[float, float]]:
    """The share answered as labelled, and Wilson's interval of it."""
    right = sum(one.is_right for one in compared)
    return right / len(compared) if compared else 0.0, wilson_interval(right, len(compared))


def macro_f1(compared: Sequence[Compared], *, seed: int) -> MacroF1:
    """The unweighted mean of the F1 of every value that is a label or an answer.

    F1 = 2 · right / (labelled so + answered so). The interval is a bootstrap's over the records, by the
    2.5 and 97.5 percentiles of RESAMPLES draws (Efron and Tibshirani, An Introduction to the Bootstrap,
    1993); a value that a draw holds none of is left out of its mean. A bootstrap alone knows no mistake that
    it has not seen, so each label is given UNSEEN records that are wrong: few labels do not look certain.
    """
    cells: Counter[tuple[str, str | None]] = Counter((name_of(one.label), _answer_of(one)) for one in compared)
    values = sorted({label for label, _ in cells} | {answer for _, answer in cells if answer is not None})
    if not values:
        return MacroF1(value=0.0, interval=(0.0, 1.0), by_label={})
    cells.update({(label, None): 0 for label, _ in cells})
    counts = np.array(list(cells.values()), dtype=float)
    weights = counts + np.array([UNSEEN if answer is None else 0.0 for _, answer in cells])
    right = np.array([[label == answer == value for value in values] for label, answer in cells], dtype=float)
    named = np.array(
        [[(label == value) + (answer == value) for value in values] for label, answer in cells], dtype=float
    )
    draws = np.random.default_rng(seed).multinomial(len(compared), weights / weights.sum(), size=RESAMPLES)
    resampled = np.nanmean(_f1(draws @ right, draws @ named), axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    found = _f1(counts @ right, counts @ named)
    return MacroF1(
        value=float(found.mean()),
        interval=(float(low), float(high)),
        by_label={value: float(one) for value, one in zip(values, found, strict=True)},
    )


def _f1(right: Any, named: Any) -> Any:
    """F1 per value; not a number where nothing is named so."""
    with np.errstate(invalid="ignore"):
        return 2 * right / named


def confusion(compared: Sequence[Compared]) -> dict[str, Any]:
    """Counts of each label (rows) by each answer (columns); values too many to show are one."""
    cells = Counter((name_of(one.label), _answer_of(one)) for one in compared)
    by_value: Counter[str] = Counter()
    for (label, answer), count in cells.items():
        by_value.update({label: count})
        if answer is not None and answer != label:
            by_value.update({answer: count})
    shown = {value for value, _ in by_value.most_common(LABELS_MAX)}
    folded: Counter[tuple[str, str]] = Counter()
    for (label, answer), count in cells.items():
        row = label if label in shown else OTHER
        column = NO_ANSWER if answer is None else answer if answer in shown else OTHER
        folded[row, column] += count
    labels = _in_order(label for label, _ in folded)
    answers = _in_order({*labels, *(answer for _, answer in folded)})
    return {
        "labels": labels,
        "answers": answers,
        "counts": [[folded[label, answer] for answer in answers] for label in labels],
    }


def _in_order(values: Iterable[str]) -> list[str]:
    return sorted(set(values), key=lambda value: (value in (OTHER, NO_ANSWER), value))


def _answer_of(one: Compared) -> str | None:
    return name_of(one.answer) if one.is_answered else None


def name_of(value: Any) -> str:
    """A label as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
