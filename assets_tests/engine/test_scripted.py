"""The scripted engine: valid, repeatable answers for any schema, and exactly the faults of its script."""

from __future__ import annotations

import enum
import json
import time
import uuid
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from batch_assets.engine.protocol import Completion, EngineRequest, EngineSetup
from batch_assets.engine.schema_answers import AnswerMaker
from batch_assets.engine.script import load_script
from batch_assets.engine.scripted import ScriptedEngine
from batch_assets.errors import EngineDied, SpecError


class Answer(BaseModel):
    category: Literal["red", "green", "blue"]
    note: str = Field(max_length=20)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    name: str
    parent: Node | None = None
    children: list[Node] = Field(default_factory=list, max_length=3)


# -- answers from schemas ----------------------------------------------------------------------------


def bounded_texts() -> st.SearchStrategy[Any]:
    limits = st.tuples(st.integers(0, 40), st.integers(0, 200))
    return limits.map(lambda pair: Annotated[str, Field(min_length=pair[0], max_length=pair[0] + pair[1])])


def bounded_numbers() -> st.SearchStrategy[Any]:
    def limit(kind: type, low: int, span: int, exclusive: bool) -> Any:
        bounds = {"gt": low, "lt": low + span + 2} if exclusive else {"ge": low, "le": low + span}
        return Annotated[kind, Field(**bounds)]

    return st.builds(
        limit, st.sampled_from([int, float]), st.integers(-1000, 1000), st.integers(0, 1000), st.booleans()
    )


def patterns() -> st.SearchStrategy[Any]:
    known = [
        r"^[A-Z]{2}-\d{4,6}$",
        r"^(yes|no|maybe so)$",
        r"^\w+@\w+\.(com|org)$",
        r"^[^a-z\s]{3}$",
        r"[0-9]+",
        r"^a?b*$",
    ]
    return st.sampled_from(known).map(lambda pattern: Annotated[str, Field(pattern=pattern)])


def lists_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def make(item: Any, least: int, extra: int) -> Any:
        return Annotated[list[item], Field(min_length=least, max_length=least + extra)]

    return st.builds(make, inner, st.integers(0, 3), st.integers(0, 4))


def models_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def make(fields: list[Any]) -> type[BaseModel]:
        named = {f"field_{number}": (annotation, ...) for number, annotation in enumerate(fields)}
        return create_model(f"Made{uuid.uuid4().hex}", **named)  # type: ignore[call-overload, no-any-return]

    return st.lists(inner, min_size=1, max_size=4).map(make)


plain_types = st.sampled_from(
    [str, int, float, bool, date, datetime, timedelta, uuid.UUID, Colour, Literal["a", "b"], Literal[1, 2], None]
)
any_types = st.recursive(
    plain_types | bounded_texts() | bounded_numbers() | patterns(),
    lambda inner: (
        lists_of(inner)
        | models_of(inner)
        | inner.map(lambda item: Optional[item])  # noqa: UP045  (item may be None itself)
        | inner.map(lambda item: dict[str, item])
        | st.tuples(inner, inner).map(lambda pair: tuple[pair])
    ),
    max_leaves=6,
)


@given(model=models_of(any_types), record_id=st.text())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_answers_satisfy_any_schema(model: type[BaseModel], record_id: str) -> None:
    """Whatever pydantic model describes the output, the answer validates against it."""
    text = AnswerMaker(model.model_json_schema()).answer(record_id)
    model.model_validate_json(text)


def test_recursive_schemas_end() -> None:
    """A model that contains itself is answered with finite nesting."""
    for number in range(20):
        Node.model_validate_json(AnswerMaker(Node.model_json_schema()).answer(str(number)))


def test_sets_have_different_items() -> None:
    """Unique items are unique, and as many as asked for."""
    model = create_model("Sets", colours=(Annotated[set[Colour], Field(min_length=2)], ...))
    for number in range(20):
        made = json.loads(AnswerMaker(model.model_json_schema()).answer(str(number)))
        assert sorted(made["colours"]) == ["blue", "red"]


def test_answers_depend_on_the_record_alone_and_vary() -> None:
    """The same record id gives the same answer in any engine; enum values are spread evenly over ids."""
    first, second = AnswerMaker(Answer.model_json_schema()), AnswerMaker(Answer.model_json_schema())
    answers = [first.answer(f"T-{number}") for number in range(900)]
    assert answers == [second.answer(f"T-{number}") for number in range(900)]
    spread = Counter(json.loads(answer)["category"] for answer in answers)
    assert all(240 < spread[colour] < 360 for colour in ("red", "green", "blue"))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "pattern": r"^(?=x)y$"}, r"\$.part has the pattern"),
        ({"type": "string", "pattern": "^abc$", "minLength": 9}, "no text of 9"),
        ({"type": "string", "format": "chess-move"}, "chess-move.*known are date"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no integer between 5 and 4"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "at least 3 and at most 2"),
        ({"$ref": "#/$defs/Gone"}, "does not define"),
    ],
)
def test_what_cannot_be_satisfied_is_named(schema: dict[str, Any], named: str) -> None:
    """An unsupported schema is one SpecError that names the place and the reason."""
    with pytest.raises(SpecError, match=named):
        AnswerMaker({"type": "object", "properties": {"part": schema}})


# -- the engine --------------------------------------------------------------------------------------


def start(folder: Path, script: str | None = None, worker: str = "w1") -> ScriptedEngine:
    setup = EngineSetup(
        model_dir=None,
        dtype="float32",
        quantization=None,
        context_tokens_max=100,
        seed=0,
        temperature=0.0,
        stop=(),
        json_schema=Answer.model_json_schema(),
    )
    path = folder / "script.yaml"
    if script is not None:
        path.write_text(script)
    engine = ScriptedEngine(setup, worker, path if script is not None else None)
    engine.start(deadline_s=5)
    return engine


def request(record_id: str, attempt: int = 1) -> EngineRequest:
    return EngineRequest(
        request_id=f"{record_id}/{attempt}",
        record_id=record_id,
        attempt=attempt,
        prompt_token_ids=(1, 2, 3),
        output_tokens_max=50,
    )


def ask(engine: ScriptedEngine, record_id: str, attempt: int = 1) -> Completion:
    engine.submit([request(record_id, attempt)])
    (completion,) = engine.poll(1.0)
    return completion


def test_without_a_script_everything_succeeds(tmp_path: Path) -> None:
    """No script means no faults."""
    completion = ask(start(tmp_path), "T-1")
    assert completion.finish_reason == "stop"
    Answer.model_validate_json(completion.text)


def test_a_scripted_text_is_the_answer(tmp_path: Path) -> None:
    """`text` is given as it stands, valid or not, with the finish reason asked for."""
    engine = start(tmp_path, "records: {T-1: {text: nonsense}, 2: {finish_reason: length, text: '{\"ca'}}")
    assert (ask(engine, "T-1").text, ask(engine, "T-1", 2).finish_reason) == ("nonsense", "stop")
    assert (ask(engine, "2").text, ask(engine, "2", 2).finish_reason) == ('{"ca', "length")


def test_record_ids_may_stand_at_the_top_level(tmp_path: Path) -> None:
    """The short form of a script means the same as the long one."""
    (tmp_path / "script.yaml").write_text("defaults: {delay_s: 0}\nT-1: {error: out of memory}\n17: {delay_s: 1}")
    script = load_script(tmp_path / "script.yaml")
    assert script.records["T-1"].error == "out of memory"
    assert script.records["17"].delay_s == 1


def test_a_scripted_error_fails_every_attempt(tmp_path: Path) -> None:
    """`error` is the message of each attempt."""
    engine = start(tmp_path, "records: {T-1: {error: out of memory}}")
    for attempt in (1, 2, 3):
        completion = ask(engine, "T-1", attempt)
        assert (completion.finish_reason, completion.error, completion.text) == ("error", "out of memory", "")


def test_fail_attempts_then_answers(tmp_path: Path) -> None:
    """`fail_attempts: 2` fails the first two attempts and answers the third."""
    engine = start(tmp_path, "records: {T-1: {fail_attempts: 2}}")
    assert [ask(engine, "T-1", attempt).finish_reason for attempt in (1, 2, 3)] == ["error", "error", "stop"]


def test_a_record_that_never_returns_holds_up_nobody(tmp_path: Path) -> None:
    """The others are answered; the hanging one can be aborted."""
    engine = start(tmp_path, "records: {T-1: {never_returns: true}}")
    engine.submit([request("T-1"), request("T-2")])
    assert [completion.request_id for completion in engine.poll(1.0)] == ["T-2/1"]
    assert engine.poll(0.05) == []
    engine.abort(["T-1/1"])


def test_a_killer_takes_the_others_with_it(tmp_path: Path) -> None:
    """What was answered before the death is delivered, the rest is lost, and a restart forgets it."""
    engine = start(tmp_path, "records: {T-2: {kills_engine: true}}")
    engine.submit([request("T-1"), request("T-2"), request("T-3")])
    assert [completion.request_id for completion in engine.poll(1.0)] == ["T-1/1"]
    with pytest.raises(EngineDied):
        engine.poll(1.0)
    with pytest.raises(EngineDied):
        engine.submit([request("T-4")])
    engine.start(deadline_s=5)
    assert engine.poll(0.0) == []
    assert ask(engine, "T-3").finish_reason == "stop"


def test_delays_run_side_by_side(tmp_path: Path) -> None:
    """Each answer comes its delay after submission, the record's own before the default."""
    engine = start(tmp_path, "defaults: {delay_s: 0.2}\nrecords: {slow: {delay_s: 0.4}, quick: {delay_s: 0}}")
    before = time.monotonic()
    engine.submit([request("slow"), *(request(f"T-{number}") for number in range(50)), request("quick")])
    assert [completion.request_id for completion in engine.poll(1.0)] == ["quick/1"]
    assert len(engine.poll(1.0)) == 50
    assert time.monotonic() - before >= 0.2
    assert [completion.request_id for completion in engine.poll(1.0)] == ["slow/1"]
    assert 0.4 <= time.monotonic() - before < 0.8


def test_each_request_served_is_logged_once(tmp_path: Path) -> None:
    """The log, beside the script, has one line per answer: record, worker, attempt and time."""
    script = "requests_log: log/requests.jsonl\nrecords: {T-2: {fail_attempts: 1}, T-3: {never_returns: true}}"
    for worker in ("w1", "w2"):
        engine = start(tmp_path, script, worker)
        engine.submit([request("T-1"), request("T-2"), request("T-3"), request("T-4")])
        engine.abort(["T-4/1"])
        engine.poll(1.0)
        engine.shutdown(deadline_s=1)
    lines = [json.loads(line) for line in (tmp_path / "log" / "requests.jsonl").read_text().splitlines()]
    assert [(line["worker"], line["record_id"], line["attempt"]) for line in lines] == [
        ("w1", "T-1", 1),
        ("w1", "T-2", 1),
        ("w2", "T-1", 1),
        ("w2", "T-2", 1),
    ]
    assert all(datetime.fromisoformat(line["time"]).tzinfo for line in lines)


def test_twenty_thousand_records_take_seconds(tmp_path: Path) -> None:
    """Plumbing on trial is not slowed down by its engine."""
    engine = start(tmp_path, "requests_log: requests.jsonl")
    before = time.process_time()
    for first in range(0, 20_000, 250):
        engine.submit([request(f"T-{number}") for number in range(first, first + 250)])
        assert len(engine.poll(1.0)) == 250
    assert time.process_time() - before < 10


# -- script files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("record: {}", r"record is not a known key; valid here are defaults, .*Did you mean records\?"),
        ("defaults: {delay: 1}", r"defaults\.delay is not a known key; valid here are delay_s, start_s.*delay_s\?"),
        ("default: {delay_s: 1}", r"default is not a known key.*Did you mean defaults\?"),
        ("records: {T-1: {kill_engine: true}}", r"records\.T-1\.kill_engine .*Did you mean kills_engine\?"),
        ("records: {T-1: {delay_s: -1}}", r"records\.T-1\.delay_s: .*greater than or equal to 0, found -1"),
        ("records: {T-1: {text: a, error: b}}", r"records\.T-1: has text and error; only one"),
        ("records: {T-1: {}}", r"records\.T-1: says nothing"),
        ("records: {true: {text: a}}", "put it in quotes"),
        ("records: {1.5: {text: a}}", "put it in quotes"),
        ("records: [T-1]", "records: Input should be a valid dictionary"),
        ("- T-1", "the file: "),
        ("records: {", "not valid YAML"),
    ],
)
def test_a_wrong_script_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file, the key, what was found and what is valid."""
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        load_script(path)
    assert str(path) in str(caught.value)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    """A script that is not there is an error, not an engine without faults."""
    with pytest.raises(SpecError, match=r"gone\.yaml cannot be read"):
        load_script(tmp_path / "gone.yaml")


def test_an_empty_script_has_no_faults(tmp_path: Path) -> None:
    """A file with only comments is valid."""
    path = tmp_path / "script.yaml"
    path.write_text("# nothing yet\n")
    assert load_script(path).records == {}
