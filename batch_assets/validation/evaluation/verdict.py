"""The evaluation's verdict, put together from golden labels, groundedness, graders and the judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batch_assets.core.spec import EvaluationGate
from batch_assets.core.verdicts import Verdict
from batch_assets.validation.evaluation.criteria import ALPHA, Criterion, asked, change_numbers, too_few, worse
from batch_assets.validation.evaluation.golden import Compared, MacroF1, accuracy, change, compare, confusion, macro_f1
from batch_assets.validation.evaluation.graded import by_grader, by_judge
from batch_assets.validation.evaluation.groundedness import groundedness
from batch_assets.validation.evaluation.sample import Sample, draw_sample, has_baseline
from batch_assets.validation.evaluation.slices import Slices, outliers, slices
from batch_assets.validation.evidence import EXAMPLES, Evidence


def evaluation(evidence: Evidence) -> Verdict:
    """Grades of golden records and of a seeded sample, each with its confidence interval.

    Catches: answers that people, code or a judge find wrong, more often than allowed, or more often
    than in what readers see now. Every minimum is compared with the lower end of a 95 % interval: what
    is not shown is not granted. Cannot catch: faults that no golden record and no sampled one has, and
    what a grader does not look at. A judge is a model; it errs as models do.
    """
    gate = evidence.gate.evaluation
    if gate is None:
        raise ValueError("the evaluation check needs gate.evaluation in the spec")
    golden = _Golden.of(evidence, gate)
    sample, criteria = _criteria(evidence, gate)
    if gate.golden_file is not None and golden is None:
        refusal = "the version's own schema does not have the field that is compared"
        criteria.append(Criterion(name="golden labels", minimum=gate.accuracy_min, grades={}, refusal=refusal))
    comparisons = sum(one.change is not None for one in criteria) + (golden is not None and golden.change is not None)
    alpha = ALPHA / max(comparisons, 1)
    sliced = {one.name: _slices(one, sample) for one in criteria}
    parts = [(golden.is_met(alpha), "; ".join(golden.summaries(alpha)))] if golden else []
    for one in criteria:
        said = [one.summary(alpha), *(f"{one.name}: {clause}" for clause in outliers(sliced[one.name]))]
        parts.append((one.is_met(alpha), "; ".join(said)))
    # What is not met comes first: a long sentence may be cut where it is shown.
    summaries = [f"not met: {said}" for is_met, said in parts if not is_met]
    summaries += [said for is_met, said in parts if is_met]
    if not has_baseline(evidence):
        summaries.append(
            "no baseline: nothing is published yet"
            if evidence.baseline_version is None
            else "this version is the published one"
        )
    met = {one.name: one.is_met(alpha) for one in criteria}
    numbers: dict[str, Any] = golden.numbers() if golden else {}
    if sample is not None:
        numbers["sample"] = {
            "records": sample.records,
            "results": len(sample.rows),
            "of_results": sample.population,
            "seed": gate.sample_seed,
        }
        numbers["criteria"] = {
            one.name: {"passed": met[one.name], **one.numbers(), "slices": sliced[one.name]} for one in criteria
        }
    numbers["baseline"] = evidence.baseline_version
    return Verdict(
        check="evaluation",
        passed=all(met.values()) and (golden is None or golden.is_met(alpha)),
        blocking=gate.blocking,
        summary="; ".join(summaries),
        numbers=numbers,
        thresholds={
            **{name: value for name, value in _minimums(gate).items() if value is not None},
            **{one.name: one.minimum for one in criteria},
            "chance_of_a_false_alarm_against_the_published_version": ALPHA,
        },
        example_ids=_examples(golden, criteria, alpha),
    )


def _slices(criterion: Criterion, sample: Sample | None) -> Slices:
    origins = {row.record_id: row.origin for row in sample.rows} if sample is not None else {}
    return slices([(origins.get(id_, {}), grade) for id_, grade in criterion.grades.items()])


def _minimums(gate: EvaluationGate) -> dict[str, float | None]:
    return {"accuracy_min": gate.accuracy_min, "macro_f1_min": gate.macro_f1_min}


def _criteria(evidence: Evidence, gate: EvaluationGate) -> tuple[Sample | None, list[Criterion]]:
    """What the sample is graded for; no sample is drawn when nothing asks for one."""
    if not (gate.groundedness or evidence.graders or gate.judge):
        return None, []
    drawn = draw_sample(evidence, max(gate.sample, gate.judge.sample if gate.judge else 0))
    if not drawn.rows and evidence.version.changes is not None:
        return drawn, []  # a night without a new answer: what readers see of these records was graded before
    sample = drawn.first(gate.sample)
    found = groundedness(gate.groundedness, sample, evidence.version.snapshot.text) if gate.groundedness else []
    found += [by_grader(grader, sample) for grader in evidence.graders]
    if gate.judge is not None:
        found.append(by_judge(gate.judge, evidence.judged, drawn))
    return sample, found


class _Golden:
    """The golden labels' part."""

    def __init__(self, gate: EvaluationGate, field: str, asked_for: int, compared: Sequence[Compared]) -> None:
        self._gate, self._field, self._asked_for, self._compared = gate, field, asked_for, compared
        self.accuracy, self.interval = accuracy(compared)
        self.macro_f1: MacroF1 = macro_f1(compared, seed=gate.sample_seed)
        self.change = change(compared)
        self.slices = slices([(one.origin, float(one.is_right)) for one in compared if one.is_answered])

    @classmethod
    def of(cls, evidence: Evidence, gate: EvaluationGate) -> _Golden | None:
        """None when the suite has no golden labels, or the version no field to compare with them."""
        field = evidence.evaluated_field
        if gate.golden_file is None or field is None:
            return None
        return cls(gate, field, len(evidence.golden), compare(evidence, field))

    @property
    def wrong(self) -> list[str]:
        return [one.record_id for one in self._compared if not one.is_right]

    def is_worse(self, alpha: float) -> bool:
        return self.change is not None and self.change.p_worse < alpha

    def is_met(self, alpha: float) -> bool:
        gate = self._gate
        return (
            bool(self._compared)
            and (gate.accuracy_min is None or self.interval[0] >= gate.accuracy_min)
            and (gate.macro_f1_min is None or self.macro_f1.interval[0] >= gate.macro_f1_min)
            and not self.is_worse(alpha)
        )

    def summaries(self, alpha: float) -> list[str]:
        if not self._compared:
            return [f"none of the {self._asked_for} golden records is in the snapshot"]
        size, gate = len(self._compared), self._gate
        right = size - len(self.wrong)
        said = [
            f"{right} of {size} golden records agree on {self._field} "
            f"({self.accuracy:.0%}; {asked(self.interval, gate.accuracy_min)})"
        ]
        if gate.accuracy_min is not None and self.interval[0] < gate.accuracy_min:
            said += too_few(size, gate.accuracy_min)
        if gate.macro_f1_min is not None:
            said.append(f"macro-F1 {self.macro_f1.value:.2f} ({asked(self.macro_f1.interval, gate.macro_f1_min)})")
        if self.change is not None and self.is_worse(alpha):
            said.append(worse(self.change))
        return [*said, *outliers(self.slices)]

    def numbers(self) -> dict[str, Any]:
        size = len(self._compared)
        found: dict[str, Any] = {
            "field": self._field,
            "golden": size,
            "golden_outside_snapshot": self._asked_for - size,
            "correct": size - len(self.wrong),
            "unanswered": sum(not one.is_answered for one in self._compared),
            "accuracy": round(self.accuracy, 4),
            "accuracy_interval_95": _rounded(self.interval),
            "macro_f1": round(self.macro_f1.value, 4),
            "macro_f1_interval_95": _rounded(self.macro_f1.interval),
            "f1": {label: round(value, 4) for label, value in self.macro_f1.by_label.items()},
            "confusion": confusion(self._compared),
            "slices": self.slices,
        }
        if self.change is not None:
            found["published"] = change_numbers(self.change)
        return found


def _examples(golden: _Golden | None, criteria: Sequence[Criterion], alpha: float) -> tuple[str, ...]:
    """Ids of what failed, those first that the verdict hangs on."""
    parts = [(golden.is_met(alpha), golden.wrong)] if golden else []
    parts += [(one.is_met(alpha), one.example_ids()) for one in criteria]
    ids = [id_ for is_met, examples in sorted(parts, key=lambda part: part[0]) for id_ in examples]
    return tuple(dict.fromkeys(ids))[:EXAMPLES]


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in interval]
