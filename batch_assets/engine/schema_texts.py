"""Made-up strings for scripted answers: words, formats such as dates, and matches of a pattern."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping, Sequence
from re import _constants as op  # type: ignore[attr-defined]  # the standard library's own regex parser,
from re import _parser  # type: ignore[attr-defined]  # private since 3.11; there is no public one
from typing import Any, TypeVar

T = TypeVar("T")

_WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "juniper", "kettle")
_WORDS_USUAL = 5
_REPEATS_EXTRA_MAX = 64  # how far open repeats such as `+` are stretched to reach a minimum length
_PRINTABLE = string.ascii_lowercase + string.digits + string.ascii_uppercase + " _-.,:;/!?@#%&()[]{}<>=+*'\"|~^$\\`\t\n"
_CLASSES = {
    op.CATEGORY_DIGIT: string.digits,
    op.CATEGORY_WORD: string.ascii_lowercase + string.digits + "_",
    op.CATEGORY_SPACE: " ",
}
_NEGATED_CLASSES = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}


class Unsatisfiable(ValueError):
    """No value can be made for this part of the schema; the message names the part."""


class Dice:
    """A stream of choices that depends on its seed alone, on every platform and Python version."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._used = 0

    def below(self, sides: int) -> int:
        """A number from 0 to `sides` - 1."""
        self._used += 1
        block = hashlib.blake2b(self._used.to_bytes(4), key=self._seed, digest_size=8).digest()
        return int.from_bytes(block) % sides

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


def words(length_min: int, length_max: float, dice: Dice) -> str:
    """A few words, not starting or ending with a space, within the limits."""
    text = " ".join(dice.pick(_WORDS) for _ in range(_WORDS_USUAL))
    while len(text) < length_min:
        text += f" {dice.pick(_WORDS)}"
    if len(text) > length_max:
        text = text[: int(length_max)]
    return f"{text[:-1]}s" if text.endswith(" ") else text


def _date(dice: Dice) -> str:
    return f"{2020 + dice.below(6)}-{1 + dice.below(12):02}-{1 + dice.below(28):02}"


def _time(dice: Dice) -> str:
    return f"{dice.below(24):02}:{dice.below(60):02}:{dice.below(60):02}Z"


def _uuid(dice: Dice) -> str:
    digits = f"{dice.below(1 << 60):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


FORMATS: Mapping[str, Callable[[Dice], str]] = {
    "date": _date,
    "date-time": lambda dice: f"{_date(dice)}T{_time(dice)}",
    "time": _time,
    "duration": lambda dice: f"P{1 + dice.below(9)}DT{dice.below(24)}H",
    "email": lambda dice: f"{dice.pick(_WORDS)}@example.org",
    "uuid": _uuid,
    "uuid4": _uuid,
    "uri": lambda dice: f"https://example.org/{dice.pick(_WORDS)}",
    "ipv4": lambda dice: f"192.0.2.{1 + dice.below(250)}",
    "ipv6": lambda dice: f"2001:db8::{1 + dice.below(250):x}",
    "path": lambda dice: f"{dice.pick(_WORDS)}/{dice.pick(_WORDS)}.txt",
    "password": lambda dice: dice.pick(_WORDS),
}


def match_pattern(pattern: str, length_min: int, length_max: float, dice: Dice, at: str) -> str:
    """A string that the pattern matches, within the limits.

    Raises Unsatisfiable for patterns with look-around or back-references, or when none fits.
    """
    try:
        parsed = _parser.parse(pattern)
    except re.error as error:
        raise Unsatisfiable(f"{at} has the pattern {pattern!r}, which does not compile: {error}") from error
    for stretch in range(_REPEATS_EXTRA_MAX):
        text = _Matcher(dice, stretch, at, pattern).sequence(parsed)
        if length_min <= len(text) <= length_max and re.search(pattern, text):
            return text
    raise Unsatisfiable(
        f"{at} has the pattern {pattern!r}, for which no text of {length_min} to {length_max} characters was found"
    )


class _Matcher:
    """Builds one match of a parsed pattern; open repeats take up to `stretch` extra turns."""

    def __init__(self, dice: Dice, stretch: int, at: str, pattern: str) -> None:
        self._dice = dice
        self._stretch = stretch
        self._where = f"{at} has the pattern {pattern!r}"

    def sequence(self, items: Any) -> str:
        return "".join(self._one(kind, argument) for kind, argument in items)

    def _one(self, kind: Any, argument: Any) -> str:
        if kind is op.LITERAL:
            return chr(argument)
        if kind is op.AT:  # ^ and $: the finished text is checked against the whole pattern
            return ""
        if kind in (op.ANY, op.NOT_LITERAL):
            return self._dice.pick([letter for letter in string.ascii_lowercase if ord(letter) != argument])
        if kind is op.IN:
            return self._dice.pick(self._members(argument))
        if kind is op.BRANCH:
            return self.sequence(self._dice.pick(argument[1]))
        if kind is op.SUBPATTERN:
            return self.sequence(argument[-1])
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, items = argument
            turns = min(least + self._dice.below(2 + self._stretch), most)
            return "".join(self.sequence(items) for _ in range(turns))
        raise Unsatisfiable(f"{self._where}, which uses {kind}; only simple patterns can be scripted")

    def _members(self, items: Any) -> str:
        """The characters of a class such as `[a-z_]`."""
        negated = items[0][0] is op.NEGATE
        members = "".join(_class_members(kind, argument) for kind, argument in items[negated:])
        return "".join(sorted(set(_PRINTABLE) - set(members))) if negated else members


def _class_members(kind: Any, argument: Any) -> str:
    if kind is op.LITERAL:
        return chr(argument)
    if kind is op.RANGE:
        return "".join(map(chr, range(argument[0], min(argument[1], argument[0] + 255) + 1)))
    if argument in _CLASSES:
        return _CLASSES[argument]
    return "".join(sorted(set(_PRINTABLE) - set(_CLASSES[_NEGATED_CLASSES[argument]])))
