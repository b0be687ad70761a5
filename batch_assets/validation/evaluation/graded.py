"""Criteria from outside of this package: the job's own graders, and its judge."""

from __future__ import annotations

import copy
from pathlib import PurePath

from batch_assets.core.graders import GradeError, Grader
from batch_assets.core.judges import Judged
from batch_assets.core.quoting import printable
from batch_assets.core.spec import JudgeGate
from batch_assets.validation.evaluation.criteria import Criterion
from batch_assets.validation.evaluation.sample import Row, Sample

_PROBLEM_CHARS = 200
_DEAD_LETTERS_SHOWN = 50


def by_grader(grader: Grader, sample: Sample) -> Criterion:
    """Call a function on every sampled result; what it raises is reported, never raised."""
    grades: dict[str, float] = {}
    problems: dict[str, str] = {}
    published: dict[str, float] = {}
    for row in sample.rows:
        try:
            grades[row.record_id] = _grade(grader, row.record, row.result)
        except GradeError as error:
            problems[row.record_id] = printable(error, chars_max=_PROBLEM_CHARS)
            continue
        if row.published is not None:
            try:
                published[row.record_id] = _grade(grader, row.record, row.published)
            except GradeError:
                continue  # what readers see now is not on trial
    low = sorted((grade, id_) for id_, grade in grades.items() if grade < 1)
    return Criterion(
        name=f"grader {grader.name}",
        minimum=grader.min,
        grades=grades,
        population=sample.population,
        published=published,
        whys={id_: f"graded {grade:g}" for grade, id_ in low},
        problems=problems,
        facts={"file": PurePath(grader.where).name, "sha256": grader.sha256},
    )


def _grade(grader: Grader, record: Row, result: Row) -> float:
    return grader.grade(copy.deepcopy(record), copy.deepcopy(result))  # a grader keeps its hands off the next one's


def by_judge(gate: JudgeGate, judged: Judged | None, sample: Sample) -> Criterion:
    """The judge's scores. A record that it gave up counts as 0 and is named."""
    if judged is None or judged.problem is not None:
        problem = "it was not asked" if judged is None else judged.problem
        facts = {"job_version": None if judged is None else judged.job_version}
        return Criterion(name="judge", minimum=gate.min, grades={}, refusal=problem, facts=facts)
    grades = {row.record_id: judged.scores.get(row.record_id, 0.0) for row in sample.first(gate.sample).rows}
    low = sorted((grade, id_) for id_, grade in grades.items() if grade < 1)
    return Criterion(
        name="judge",
        minimum=gate.min,
        grades=grades,
        population=sample.population,
        whys={
            id_: f"no score: {judged.dead_letters.get(id_, 'the judge has no result for it')}"
            if id_ not in judged.scores
            else f"scored {grade:g}"
            for grade, id_ in low
        },
        facts={
            "job_version": judged.job_version,
            "without_score": len(grades.keys() - judged.scores.keys()),
            "dead_letters": dict(list(judged.dead_letters.items())[:_DEAD_LETTERS_SHOWN]),
        },
    )
