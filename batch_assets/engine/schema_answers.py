"""Answers made from a JSON schema: valid, deterministic, and different from record to record.

They stand in for a model's when only the plumbing is on trial. Supported is what pydantic writes into
a JSON schema; whatever cannot be satisfied is one SpecError that names the place, not a wrong answer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from batch_assets.engine.schema_texts import FORMATS, Dice, Unsatisfiable, match_pattern, words
from batch_assets.errors import SpecError

Schema = Mapping[str, Any]

_DEPTH_MAX = 6  # below this, recursive schemas take their shortest way out
_ITEMS_EXTRA_MAX = 2  # arrays have up to this many items more than they must
_NUMBER_SPAN = 100  # how far numbers spread when the schema does not say
_UNIQUE_TRIES = 200
_STEPS = 1000  # choices along a range of floats


class AnswerMaker:
    """Makes answers for one schema. The answer depends on schema and record id alone.

    Raises SpecError when no answer can satisfy the schema.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self.answer("probe")  # fails here rather than at the first record

    def answer(self, record_id: str) -> str:
        """Compact JSON that satisfies the schema."""
        dice = Dice(hashlib.sha256(record_id.encode()).digest())
        try:
            value = self._value(self._root, dice, "$", 0)
        except Unsatisfiable as error:
            raise SpecError(
                f"The scripted engine cannot make an answer for the output schema: {error}. Change the schema, or "
                "run the job on a real engine."
            ) from error
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _value(self, schema: Schema, dice: Dice, at: str, depth: int) -> Any:
        schema = self._resolved(schema, at)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return dice.pick(schema["enum"])
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._branch(schema, schema[union], dice, at, depth)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            return self._branch(schema, [{"type": one} for one in kind], dice, at, depth)
        return self._typed(kind, schema, dice, at, depth)

    def _typed(self, kind: str, schema: Schema, dice: Dice, at: str, depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, dice, at, depth)
            case "array":
                return self._array(schema, dice, at, depth)
            case "string":
                return _string(schema, dice, at)
            case "integer":
                return _integer(schema, dice, at)
            case "number":
                return _number(schema, dice, at)
            case "boolean":
                return dice.below(2) == 1
            case "null":
                return None
        raise Unsatisfiable(f"{at} has the unknown type {kind!r}")

    def _resolved(self, schema: Schema, at: str) -> Schema:
        """Follow references; fold `allOf` into one schema."""
        while "$ref" in schema or "allOf" in schema:
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
            parts = [self._referenced(schema["$ref"], at)] if "$ref" in schema else []
            schema = _merged([*parts, *schema.get("allOf", []), rest])
        return schema

    def _referenced(self, reference: str, at: str) -> Schema:
        node: Any = self._root
        try:
            for key in reference.removeprefix("#").strip("/").split("/"):
                node = node[key.replace("~1", "/").replace("~0", "~")] if key else node
        except (KeyError, TypeError):
            raise Unsatisfiable(f"{at} refers to {reference}, which the schema does not define") from None
        if not isinstance(node, Mapping):
            raise Unsatisfiable(f"{at} refers to {reference}, which is not a schema")
        return node

    def _branch(self, schema: Schema, branches: list[Schema], dice: Dice, at: str, depth: int) -> Any:
        """One of the alternatives, starting at a chosen one and passing over those that fail."""
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "type")}
        start = dice.below(len(branches))
        order = [*branches[start:], *branches[:start]]
        if depth >= _DEPTH_MAX:
            order.sort(key=lambda branch: branch.get("type") != "null")
        failure = Unsatisfiable(f"{at} has no alternatives")
        for branch in order:
            try:
                return self._value(_merged([rest, self._resolved(branch, at)]), dice, at, depth)
            except Unsatisfiable as error:
                failure = error
        raise failure

    def _object(self, schema: Schema, dice: Dice, at: str, depth: int) -> dict[str, Any]:
        """Every named property, optional ones too, unless the nesting is already deep."""
        if depth > 2 * _DEPTH_MAX:
            raise Unsatisfiable(f"{at} contains itself without an end")
        required = schema.get("required", ())
        made = {
            name: self._value(property_schema, dice, f"{at}.{name}", depth + 1)
            for name, property_schema in schema.get("properties", {}).items()
            if name in required or depth < _DEPTH_MAX
        }
        self._add_free_keys(made, schema, dice, at, depth)
        return made

    def _add_free_keys(self, made: dict[str, Any], schema: Schema, dice: Dice, at: str, depth: int) -> None:
        """Keys of a mapping such as `dict[str, int]`."""
        values = schema.get("additionalProperties", False)
        wanted = max(schema.get("minProperties", 0), 0 if values is False or values is True else 1)
        keys = schema.get("propertyNames", {"pattern": r"^key_[a-z]{3}$"})
        for _ in range(_UNIQUE_TRIES):
            if len(made) >= min(wanted, schema.get("maxProperties", wanted)):
                return
            key = self._value({"type": "string", **keys}, dice, f"{at} (key)", depth + 1)
            made[key] = self._value(values if isinstance(values, Mapping) else {}, dice, f"{at}.{key}", depth + 1)
        raise Unsatisfiable(f"{at} needs {wanted} different keys")

    def _array(self, schema: Schema, dice: Dice, at: str, depth: int) -> list[Any]:
        fixed = schema.get("prefixItems", [])
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", math.inf), least + _ITEMS_EXTRA_MAX) if depth < _DEPTH_MAX else least
        if "items" not in schema and fixed:
            most = min(most, len(fixed)) if least <= len(fixed) else most
        if least > most:
            raise Unsatisfiable(f"{at} needs at least {least} and at most {most} items")
        length = int(least) + dice.below(int(most - least) + 1)
        made: list[Any] = []
        for _ in range(length + _UNIQUE_TRIES):
            if len(made) == length:
                return made
            item = fixed[len(made)] if len(made) < len(fixed) else schema.get("items", {})
            value = self._value(item, dice, f"{at}[{len(made)}]", depth + 1)
            if not schema.get("uniqueItems") or value not in made:
                made.append(value)
        if len(made) >= least:
            return made
        raise Unsatisfiable(f"{at} needs {least} different items")


def _merged(schemas: list[Schema]) -> dict[str, Any]:
    """Later ones win, except that their properties and required names add up."""
    merged: dict[str, Any] = {}
    for schema in schemas:
        properties = {**merged.get("properties", {}), **schema.get("properties", {})}
        required = [*merged.get("required", ()), *schema.get("required", ())]
        merged.update(schema)
        if properties:
            merged.update(properties=properties, required=required)
    return merged


def _string(schema: Schema, dice: Dice, at: str) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if least > most:
        raise Unsatisfiable(f"{at} needs at least {least} and at most {most} characters")
    if "pattern" in schema:
        return match_pattern(schema["pattern"], least, most, dice, at)
    if "format" in schema:
        return _formatted(schema["format"], least, most, dice, at)
    return words(least, most, dice)


def _formatted(name: str, least: int, most: float, dice: Dice, at: str) -> str:
    make = FORMATS.get(name)
    text = make(dice) if make else None
    if text is None:
        raise Unsatisfiable(f"{at} has the format {name!r}; known are {', '.join(sorted(FORMATS))}")
    if not least <= len(text) <= most:
        raise Unsatisfiable(f"{at} has the format {name!r}, which does not fit its length limits")
    return text


def _integer(schema: Schema, dice: Dice, at: str) -> int:
    step = schema.get("multipleOf", 1)
    low, high = _bounds(schema)
    low = max(low, math.floor(schema.get("exclusiveMinimum", -math.inf)) + 1 if "exclusiveMinimum" in schema else low)
    high = min(high, math.ceil(schema["exclusiveMaximum"]) - 1 if "exclusiveMaximum" in schema else high)
    first, last = math.ceil(low / step), math.floor(high / step)
    if first > last:
        raise Unsatisfiable(f"{at} has no integer between {low} and {high}")
    return int((first + dice.below(last - first + 1)) * step)


def _number(schema: Schema, dice: Dice, at: str) -> float | int:
    low, high = _bounds(schema)
    if step := schema.get("multipleOf"):
        return _integer(schema, dice, at) if float(step).is_integer() else math.ceil(low / step) * step
    if low > high:
        raise Unsatisfiable(f"{at} has no number between {low} and {high}")
    # Never an end of the range, so that exclusive bounds hold too.
    value = low + (high - low) * (1 + dice.below(_STEPS)) / (_STEPS + 2)
    rounded = round(value, 2)
    return rounded if low < rounded < high else value


def _bounds(schema: Schema) -> tuple[float, float]:
    """Lowest and highest value; where the schema leaves one open, near the other."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = max(lows) if lows else min(highs) - _NUMBER_SPAN if highs else 0
    return low, min(highs) if highs else low + _NUMBER_SPAN
