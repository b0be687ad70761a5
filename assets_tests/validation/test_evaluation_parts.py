"""The parts of the evaluation, each by itself: formulas, groundedness, graders, slices, the picture."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

import pytest

from batch_assets.core.graders import Grader, GraderSourceError, load_graders
from batch_assets.core.spec import GroundednessGate
from batch_assets.core.statistics import binomial_tail, fisher_lower_tail, paired_change, wilson_interval
from batch_assets.validation.confusion_picture import confusion as picture
from batch_assets.validation.evaluation.criteria import Criterion
from batch_assets.validation.evaluation.golden import LABELS_MAX, Compared, confusion, macro_f1
from batch_assets.validation.evaluation.graded import by_grader
from batch_assets.validation.evaluation.groundedness import groundedness
from batch_assets.validation.evaluation.sample import Sample, Sampled
from batch_assets.validation.evaluation.slices import outliers, slices


def compared(label: Any, answer: Any, *, is_answered: bool = True) -> Compared:
    return Compared(
        record_id="r",
        label=label,
        answer=answer,
        is_answered=is_answered,
        origin={},
        published=None,
        is_published=False,
    )


def sample_of(*rows: tuple[Mapping[str, Any], Mapping[str, Any]], population: int | None = None) -> Sample:
    sampled = tuple(
        Sampled(record_id=f"R-{number}", record=record, result=result, published=None)
        for number, (record, result) in enumerate(rows)
    )
    return Sample(rows=sampled, records=len(rows), population=population or len(rows))


def test_wilson_interval_shrinks_with_the_part_that_was_drawn() -> None:
    """The published example of Wilson's interval; nothing is uncertain once everything was graded."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson_interval(15, 20, population=20) == (0.75, 0.75)
    half = wilson_interval(15, 20, population=39)
    whole = wilson_interval(15, 20)
    assert whole[0] < half[0] < 0.75 < half[1] < whole[1]


def test_exact_tests_agree_with_values_computed_by_hand() -> None:
    """Small enough to count out."""
    assert binomial_tail(4, 5) == 6 / 32
    assert binomial_tail(0, 0) == 1
    # Of 4 right among 4 + 4, none here: C(4,0)·C(4,4) / C(8,4).
    assert fisher_lower_tail(0, 4, 4, 4) == 1 / 70
    assert fisher_lower_tail(4, 4, 0, 4) == 1


def test_paired_change_counts_only_pairs_that_differ() -> None:
    """Five lost of a hundred are more than chance, five lost and four gained are not."""
    lost = paired_change([(1.0, 0.0)] * 5 + [(1.0, 1.0)] * 95)
    assert (lost.pairs, lost.worse, lost.better, lost.p_worse, lost.difference) == (100, 5, 0, 1 / 32, -0.05)
    assert lost.interval[0] < -0.05 < lost.interval[1] < 0
    assert paired_change([(1.0, 0.0)] * 5 + [(0.0, 1.0)] * 4).p_worse == 0.5
    finer = paired_change([(0.9, 0.6)] * 20 + [(0.5, 0.6)] * 4)
    assert finer.p_worse < 0.001 < paired_change([(0.9, 0.6), (0.6, 0.9)] * 10).p_worse


def test_macro_f1_is_the_mean_over_labels_and_answers() -> None:
    """As scikit-learn's f1_score(average="macro") has it; a record without an answer costs its label's recall."""
    rows = [compared("a", "a")] * 6 + [compared("a", "b")] * 2 + [compared("b", "b")] * 3
    rows += [compared("b", None, is_answered=False)]
    found = macro_f1(rows, seed=1)
    f1_a, f1_b = 2 * 6 / (8 + 6), 2 * 3 / (4 + 5)
    assert found.by_label == pytest.approx({"a": f1_a, "b": f1_b})
    assert found.value == pytest.approx((f1_a + f1_b) / 2)
    assert found.interval[0] < found.value < found.interval[1]
    assert macro_f1(rows, seed=1) == found
    few, many = (macro_f1([compared("a", "a")] * count, seed=1) for count in (9, 900))
    assert (few.value, few.interval[1], many.interval[1]) == (1.0, 1.0, 1.0)
    assert few.interval[0] < 0.9 < 0.99 < many.interval[0]
    assert math.isclose(macro_f1([compared("a", "c")] * 9, seed=1).value, 0.0)


def test_confusion_counts_every_record_and_folds_rare_labels() -> None:
    """Rows and columns are few enough to look at, and their sum is all records."""
    rows = [compared("a", "b"), compared("b", "b"), compared("b", None, is_answered=False)]
    assert confusion(rows) == {
        "labels": ["a", "b"],
        "answers": ["a", "b", "(no answer)"],
        "counts": [[0, 1, 0], [0, 1, 1]],
    }
    many = [compared(f"l{number % 50}", "x") for number in range(100)]
    folded = confusion(many)
    assert len(folded["labels"]) == LABELS_MAX  # x, and the rest as one
    assert sum(map(sum, folded["counts"])) == 100


def test_the_picture_escapes_labels() -> None:
    """Labels are foreign text."""
    svg = picture(confusion([compared("<script>alert(1)</script>", "b\x1b[31m")]))
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert "<script>ale" in "".join(root.itertext())


def test_a_slice_that_is_clearly_worse_is_named() -> None:
    """One engine among others answers wrong; the small slice that is wrong by chance is not named."""
    good = [({"_engine": "v1 on H200", "_record_class": None}, 1.0)] * 90
    bad = [({"_engine": "v2 on <A10>"}, 0.0)] * 10 + [({"_engine": "v2 on <A10>"}, 1.0)] * 5
    chance = [({"_engine": "v3"}, 0.0), ({"_engine": "v3"}, 1.0)]
    found = slices(good + bad + chance)
    assert [(row["slice"], row["graded"], row["clearly_worse"]) for row in found["_engine"]] == [
        ("v1 on H200", 90, False),
        ("v2 on <A10>", 15, True),
        ("v3", 2, False),
    ]
    assert outliers(found) == ["_engine 'v2 on <A10>' is clearly worse than the rest (33% of 15)"]
    assert list(found) == ["_engine"]


ENTITIES = {
    "as it stands": ("Halo lamp", None),
    "other case and spaces": ("HALO\n  lamp", None),
    "without a space": ("halolamp", None),
    "full-width digits": ("４７１１", None),
    "across two columns": ("lamp my", None),
    "invented": ("Nova", "entities: 'Nova' does not occur in the record"),
    "half of a number": ("471", "entities: '471' does not occur in the record"),
    "blank": (" ", "an entity of entities is empty"),
    "a pattern": ("H.lo", "entities: 'H.lo' does not occur in the record"),
}


@pytest.mark.parametrize("kind", ENTITIES)
def test_entities_must_occur_in_the_record(kind: str) -> None:
    """Whatever their case, spaces and Unicode form; and the fault says why."""
    entity, fault = ENTITIES[kind]
    record = {"subject": "Halo lamp", "body": "my order 4711 is late", "other": "Nova"}
    sample = sample_of(
        (record, {"entities": ["late", entity]}), (record, {"entities": []}), (record, {"entities": None})
    )
    (found,) = groundedness(GroundednessGate(entities=("entities",)), sample, ("subject", "body"))
    assert dict(found.whys) == ({} if fault is None else {"R-0": fault})
    assert found.mean == pytest.approx(1.0 if fault is None else 2 / 3)


@pytest.mark.parametrize(
    ("summary", "fault"),
    [
        ("A late order.", None),
        ("", "the summary is empty"),
        (" \n", "the summary is empty"),
        (None, "the summary is empty"),
        ("MY order 4711  is late.", "the summary is the record itself"),
        ("Halo lamp my order 4711 is late", "the summary is the record itself"),
    ],
)
def test_a_summary_is_neither_empty_nor_the_record(summary: str | None, fault: str | None) -> None:
    """Neither the whole text nor its longest column counts as a summary."""
    sample = sample_of(({"subject": "Halo lamp", "body": "my order 4711 is late"}, {"summary": summary}))
    (found,) = groundedness(GroundednessGate(summary="summary"), sample, ("subject", "body"))
    assert dict(found.whys) == ({} if fault is None else {"R-0": fault})


GRADERS = """\
from dataclasses import dataclass

print("printed on load")

@dataclass
class Point:
    x: int

def short(record, result):
    print("printed on grading")
    record["n"] = 99
    return len(result["summary"]) < 10

def part(record, result):
    return record["n"] / 4

def faulty(record, result):
    if record["n"] == 1:
        return "yes"
    if record["n"] == 2:
        return float("nan")
    if record["n"] == 3:
        raise SystemExit(0)
    return {}["missing"] if record["n"] == 4 else True
"""


def graded(function: str, rows: int) -> Criterion:
    functions = load_graders(GRADERS, where="graders.py")
    grader = Grader(name=function, function=functions[function], where="graders.py", sha256="d", min=0.5)
    return by_grader(grader, sample_of(*(({"n": n}, {"summary": "x" * 4 * n}) for n in range(rows))))


def test_graders_grade_and_what_they_print_goes_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Booleans and shares; a grader that changes its record changes it for itself alone."""
    short = graded("short", 4)
    assert (short.grades, short.is_met(0.05)) == ({"R-0": 1, "R-1": 1, "R-2": 1, "R-3": 0}, True)
    assert short.whys == {"R-3": "graded 0"}
    part = graded("part", 5)
    assert (part.mean, part.interval, list(part.whys)) == (0.5, (0.5, 0.5), ["R-0", "R-1", "R-2", "R-3"])
    printed = capsys.readouterr()
    assert (printed.out, "printed on grading" in printed.err) == ("", True)


def test_a_grader_that_fails_is_reported_with_record_and_line() -> None:
    """Nothing that it does ends the check, and the criterion is not met."""
    found = graded("faulty", 6)
    assert found.problems == {
        "R-1": "returned a str; it must return a bool or a float from 0 to 1",
        "R-2": "returned nan; it must return a bool or a float from 0 to 1",
        "R-3": "line 23: SystemExit: 0",
        "R-4": "line 24: KeyError: 'missing'",
    }
    assert found.grades == {"R-0": 1.0, "R-5": 1.0}
    assert not found.is_met(0.05)
    assert "4 could not be graded ('R-1': returned a str" in found.summary(0.05)


def test_a_file_of_graders_that_does_not_load_is_explained() -> None:
    """With its name and the line."""
    with pytest.raises(
        GraderSourceError, match=r"graders\.py does not load: line 2: ZeroDivisionError: division by zero"
    ):
        load_graders("x = 1\ny = x / 0\n", where="graders.py")
    with pytest.raises(GraderSourceError, match=r"graders\.py does not load: SyntaxError: .*line 1"):
        load_graders("def f(:\n", where="graders.py")


def test_few_grades_cannot_reach_a_high_minimum() -> None:
    """The summary says that it is the number of grades that falls short."""
    found = Criterion(name="grader g", minimum=0.9, grades={str(n): 1.0 for n in range(10)}, population=1_000_000)
    assert not found.is_met(0.05)
    assert "10 grades cannot show more than 72%, even if all were right" in found.summary(0.05)
