"""The list of failures seen elsewhere and the tests that carry their numbers say the same."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_case_has_a_test_and_every_number_a_line() -> None:
    """No case without a test, no number that the list does not explain."""
    listed = re.findall(r"^\| ([CD]\d\d) \|", (HERE / "CASES.md").read_text(encoding="utf-8"), re.MULTILINE)
    marked = {
        number
        for path in HERE.rglob("*/test_*.py")  # not this one
        for numbers in re.findall(r"pytest\.mark\.case\(([^)]*)\)", path.read_text(encoding="utf-8"))
        for number in re.findall(r'"([CD]\d\d)"', numbers)
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == marked
