"""Groundedness: an answer names nothing that its record does not, and its summary is one.

Texts are compared after Unicode's NFKC form, without regard to case and white space. A number does
not occur inside a longer one: 558 is not in order 55821. Says nothing about entities that an answer
leaves out, nor whether a summary is true.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from batch_assets.core.quoting import quoted
from batch_assets.core.spec import GroundednessGate
from batch_assets.validation.evaluation.criteria import Criterion
from batch_assets.validation.evaluation.sample import Row, Sample

_EDGES = " .,;:!?\"'()[]"

# Given the record's texts and the answer: what is wrong with it, or None.
Finder = Callable[[Sequence[str], Row], str | None]


def groundedness(gate: GroundednessGate, sample: Sample, text: Sequence[str]) -> list[Criterion]:
    """One criterion for the entities and one for the summary, as far as the gate names fields for them."""
    criteria = []
    if gate.entities:
        find: Finder = partial(_unfounded, fields=gate.entities)
        criteria.append(_criterion("entities in the record", gate.min, sample, text, find, list(gate.entities)))
    if gate.summary is not None:
        find = partial(_no_summary, field=gate.summary)
        criteria.append(_criterion("summary that is one", gate.min, sample, text, find, [gate.summary]))
    return criteria


def _criterion(
    name: str, minimum: float, sample: Sample, text: Sequence[str], find: Finder, fields: list[str]
) -> Criterion:
    absent = [field for field in fields if any(field not in row.result for row in sample.rows)]
    if absent:
        refusal = f"the version's own schema has no field {absent[0]!r}"
        return Criterion(name=name, minimum=minimum, grades={}, refusal=refusal)
    faults: dict[str, str | None] = {}
    published: dict[str, float] = {}
    for row in sample.rows:
        texts = [str(row.record[column]) for column in text if row.record[column] is not None]
        faults[row.record_id] = find(texts, row.result)
        if row.published is not None:
            published[row.record_id] = float(find(texts, row.published) is None)
    return Criterion(
        name=name,
        minimum=minimum,
        grades={id_: float(fault is None) for id_, fault in faults.items()},
        population=sample.population,
        published=published,
        whys={id_: fault for id_, fault in faults.items() if fault is not None},
        facts={"fields": fields},
    )


def _unfounded(texts: Sequence[str], answer: Row, *, fields: Sequence[str]) -> str | None:
    text = normal(" ".join(texts))
    for field in fields:
        for entity in _strings(answer[field]):
            if not entity.strip():
                return f"an entity of {field} is empty"
            if not _occurs(normal(entity), text):
                return f"{field}: {quoted(entity)} does not occur in the record"
    return None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _occurs(wanted: str, text: str) -> bool:
    return _stands_in(wanted, text) or _stands_in(wanted.replace(" ", ""), text.replace(" ", ""))


def _stands_in(wanted: str, text: str) -> bool:
    before = r"(?<!\d)" if wanted[:1].isdigit() else ""
    after = r"(?!\d)" if wanted[-1:].isdigit() else ""
    return re.search(f"{before}{re.escape(wanted)}{after}", text) is not None


def _no_summary(texts: Sequence[str], answer: Row, *, field: str) -> str | None:
    summary = answer[field]
    if summary is None or not str(summary).strip():
        return "the summary is empty"
    wholes = [" ".join(texts), max(texts, key=len, default="")]
    if normal(str(summary)).strip(_EDGES) in [normal(whole).strip(_EDGES) for whole in wholes]:
        return "the summary is the record itself"
    return None


def normal(text: str) -> str:
    """NFKC, folded case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
