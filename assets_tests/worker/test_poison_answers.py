"""Answers that are valid for pydantic and still cannot be stored cost only themselves."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from assets_tests.factories import make_job, record_id
from assets_tests.homes import Home
from batch_assets.errors import SpecError, StoreError
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.operations.work import work
from batch_assets.storage.outcomes import Outcomes, Put, PutReceipt

HEAD = """\
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator


"""

# One answer that must become a dead letter, and one that must be stored.
POISON: dict[str, tuple[str, str, str]] = {
    "a number beyond 64 bits": ("n: int", '{"n": 100000000000000000000000}', '{"n": 1}'),
    "a decimal finer than its column": ("n: Decimal", '{"n": "1.12345678901234"}', '{"n": "1.5"}'),
    "an infinite number": ("n: float", '{"n": 1e999}', '{"n": 1e308}'),
    "an infinite number deep inside": ("n: dict[str, list[float]]", '{"n": {"a": [1, -1e999]}}', '{"n": {"a": [1]}}'),
    "half a surrogate pair": ("n: str", '{"n": "\\ud800"}', '{"n": "x"}'),
    "a validator that fails in its own way": (
        "n: int\n\n    @field_validator('n')\n    @classmethod\n    def look(cls, n: int) -> int:\n        return {1: 1}[n]",
        '{"n": 2}',
        '{"n": 1}',
    ),
}


@pytest.mark.case("C25")
@pytest.mark.parametrize("name", POISON)
def test_an_answer_that_cannot_be_stored_is_an_invalid_output(home: Home, name: str) -> None:
    """Three attempts, a dead letter that says why, and the shard is sealed with all the others."""
    field, bad, good = POISON[name]
    texts = {record_id(n): {"text": good} for n in range(10)}
    texts[record_id(3)] = {"text": bad}
    schema = f"{HEAD}class Output(BaseModel):\n    {field}\n"
    make_job(home.jobs, records=10, output_schema=schema, script={"records": texts})
    registered, _ = home.worked()
    (letter,) = home.dead_letters(registered)
    assert (letter.record_id, letter.reason, letter.attempts) == (record_id(3), "invalid_output", 3)
    assert letter.error
    assert len(home.sealed_rows(registered)) == 9


ROUND_TRIPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "an alias": ("n: str = Field(alias='Category')", '{"Category": "x"}', {"n": "x"}),
    "an excluded field": ("n: str = Field(exclude=True)", '{"n": "x"}', {"n": "x"}),
    "a computed field": (
        "model_config = ConfigDict(extra='forbid')\n    n: str\n\n    @computed_field\n    @property\n"
        "    def twice(self) -> str:\n        return self.n * 2",
        '{"n": "x"}',
        {"n": "x"},
    ),
    "a validator that changes the value": (
        "n: str\n\n    @field_validator('n')\n    @classmethod\n    def shout(cls, n: str) -> str:\n        return n + '!'",
        '{"n": "x"}',
        {"n": "x!"},  # once, not once per reading
    ),
    "a mapping": ("n: dict[str, int]", '{"n": {"a": 1}}', {"n": [("a", 1)]}),
    "a strict model": ("model_config = ConfigDict(strict=True)\n    n: Literal['x', 'y']", '{"n": "x"}', {"n": "x"}),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_what_pydantic_can_do_reaches_the_table(home: Home, name: str) -> None:
    """Aliases, validators, mappings and the like are sealed as the model sees them, and pass the schema check."""
    fields, text, row = ROUND_TRIPS[name]
    schema = f"{HEAD}class Output(BaseModel):\n    {fields}\n"
    script = {"records": {record_id(n): {"text": text} for n in range(5)}}
    make_job(home.jobs, records=5, output_schema=schema, script=script)
    registered, _ = home.worked()
    rows = home.sealed_rows(registered)
    assert len(rows) == 5
    assert {key: rows[0][key] for key in row} == row
    assert all(verdict.passed for verdict in check(home.deployment, registered))
    publish(home.deployment, registered)


def test_a_model_without_fields_is_refused_when_loaded(home: Home) -> None:
    """There is nothing to store in such a column, so nobody computes for it."""
    schema = f"{HEAD}class Part(BaseModel):\n    pass\n\n\nclass Output(BaseModel):\n    n: Part\n"
    make_job(home.jobs, output_schema=schema)
    with pytest.raises(SpecError, match="field 'n': Part has no fields"):
        home.pinned()


def test_a_worker_told_to_stop_does_not_wait_for_a_store_that_is_away(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk and a notice at once: the worker ends in time, and the next one asks for everything again."""
    make_job(home.jobs, records=20, script={}, drain_s=1.0)
    registered = home.pinned()
    put = Outcomes.put
    refused: list[Put] = []

    def full(_outcomes: Outcomes, flush: Put) -> PutReceipt:
        refused.append(flush)
        raise StoreError("disk full")

    monkeypatch.setattr(Outcomes, "put", full)
    report = work(home.deployment, registered, should_stop=lambda: bool(refused))
    assert (report.drained, home.status(registered)["results"]) == (True, 0)
    monkeypatch.setattr(Outcomes, "put", put)
    home.deployment.ledger.leases.reclaim_dead(registered.job_version, lambda _owner: True)
    work(home.deployment, registered)
    assert home.status(registered)["results"] == 20


def test_the_stored_text_is_the_engine_s_own(home: Home) -> None:
    """Sealing reads the engine's own words once more, so nothing is converted twice."""
    text = json.dumps({"category": "bug", "summary": "a  b", "entities": []}, indent=2)
    make_job(home.jobs, records=1, script={"records": {record_id(0): {"text": text}}})
    registered, _ = home.worked()
    (stored,) = home.deployment.ledger.outcomes.results_of_shard(registered.job_version, 0)
    assert stored.payload == text
    key = next(iter(home.deployment.ledger.progress.shards(registered.job_version))).sealed_key
    assert pq.read_table(home.deployment.objects.path(str(key)))["summary"].to_pylist() == ["a  b"]
