"""Graders: functions of the job's folder that grade one result each.

    def names_the_product(record: Mapping, result: Mapping) -> bool | float

`record` has the snapshot's columns, `result` the output schema's fields. True and False count as 1
and 0; a float is a grade between them. The file is loaded by itself, as the output schema is.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

GraderFunction = Callable[[Mapping[str, Any], Mapping[str, Any]], bool | float]


class GraderSourceError(ValueError):
    """The file of graders cannot be used; the message says why."""


class GradeError(ValueError):
    """A grader failed on one record; the message says how, and where in its file."""


@dataclass(frozen=True, kw_only=True)
class Grader:
    """One function, ready to be called."""

    name: str
    function: GraderFunction
    where: str  # the file
    sha256: str  # of the file's text: another text is another standard
    min: float

    def grade(self, record: Mapping[str, Any], result: Mapping[str, Any]) -> float:
        """The grade, 0 to 1. Raises GradeError for an exception and for any other answer."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                grade = self.function(record, result)
        except (Exception, SystemExit) as error:
            raise GradeError(_describe(error, self.where)) from error
        if not isinstance(grade, bool | int | float):
            raise GradeError(f"returned a {type(grade).__name__}; it must return a bool or a float from 0 to 1")
        if not 0 <= grade <= 1:  # nan is neither
            raise GradeError(f"returned {grade}; it must return a bool or a float from 0 to 1")
        return float(grade)


def load_graders(source: str, *, where: str) -> dict[str, GraderFunction]:
    """Execute a file of graders and return its functions by name. This runs the author's Python."""
    module = types.ModuleType(f"batch_assets_graders_{hashlib.sha256(source.encode()).hexdigest()[:16]}")
    module.__file__ = where
    sys.modules[module.__name__] = module  # dataclasses and pickles look their module up
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(source, where, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise GraderSourceError(f"{where} does not load: {_describe(error, where)}") from error
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type) and not name.startswith("__")
    }


def _describe(error: BaseException, where: str) -> str:
    """The error on one line, with the line of the author's file that it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if line is None or isinstance(error, SyntaxError) else f"line {line}: {text}"
