"""One job whose every text is hostile, taken through the whole pipeline once on each kind of ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assets_tests.factories import make_job
from assets_tests.homes import Home, temporary_home
from assets_tests.hostile.corpus import BAD_ANSWERS, BLANK, GOOD_ANSWERS, HUGE, SCHEMA, TEXTS, answer
from batch_assets.core.verdicts import Verdict
from batch_assets.engine import scripted
from batch_assets.engine.script import Script
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.storage.plans import RegisteredVersion

JOB = "hostile"


@dataclass
class Case:
    """The records of the job, what the engine says of each, and what must become of it."""

    records: list[dict[str, str]] = field(default_factory=list)
    script: dict[str, dict[str, Any]] = field(default_factory=dict)
    stored: dict[str, Mapping[str, object]] = field(default_factory=dict)  # id -> columns
    dead: dict[str, tuple[str, str]] = field(default_factory=dict)  # id -> (reason, part of the error)

    def add(self, record_id: str, *, body: str = "text", subject: str = "subject", label: str = "team") -> None:
        row = {"record_id": record_id, "subject": subject, "body": body, "record_class": label, "acl": label}
        self.records.append(row)

    def answers(self, record_id: str, text: str, columns: Mapping[str, object], **record: str) -> None:
        self.add(record_id, **record)
        self.script[record_id] = {"text": text}
        self.stored[record_id] = {"record_id": record_id, "acl": self.records[-1]["acl"], **columns}

    def dies(self, record_id: str, reason: str, part: str = "", *, engine: Any = None, **record: str) -> None:
        self.add(record_id, **record)
        self.dead[record_id] = (reason, part)
        if engine is not None:
            self.script[record_id] = engine


def hostile_case() -> Case:
    """Every text in every place."""
    case = Case()
    for text in TEXTS.values():
        case.answers(
            text, answer(text, tags={text: text}), {"summary": text, "tags": [(text, text)]}, body=text, label=text
        )
    for name, text in BLANK.items():
        case.dies(f"blank {name}", "empty_input", subject="", body=text)
    for name, text in TEXTS.items():
        case.dies(f"error {name}", "engine_error", spelled_out(text[:500]), engine={"error": text})
        case.dies(f"raw {name}", "invalid_output", engine={"text": text})
    for name, text in HUGE.items():
        case.dies(f"huge {name}", "input_too_long", "20,000 allowed", body=text, label=text)
        case.answers(f"huge answer {name}", answer(text), {"summary": text}, label=text)
    for name, (text, part) in BAD_ANSWERS.items():
        case.dies(f"bad {name}", "invalid_output", part, engine={"text": text})
        case.dies(f"cut {name}", "truncated", "cut off", engine={"text": text, "finish_reason": "length"})
    for name, (text, columns) in GOOD_ANSWERS.items():
        case.answers(f"good {name}", text, columns)
    return case


def spelled_out(text: str) -> str:
    """An error message as the ledger keeps it: NUL and half surrogate pairs in letters."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


@dataclass(frozen=True)
class Hostile:
    """The job after pinning, working, checking and publishing."""

    home: Home
    registered: RegisteredVersion
    case: Case
    verdicts: list[Verdict]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """The published job, once on each kind of ledger; tests only look at it."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    ledger = None
    if request.param == "postgresql":
        ledger = request.getfixturevalue("postgresql").new_database()
    case = hostile_case()
    with temporary_home(folder, ledger=ledger) as home, pytest.MonkeyPatch.context() as patch:
        make_job(
            home.jobs,
            name=JOB,
            records=case.records,
            shard_size=97,
            output_schema=SCHEMA,
            script={},
            decoding={"input_tokens_max": 20_000},
            gate={"dead_letters": {"rate_max": 1.0, "cluster_ratio_max": None}},
        )
        # YAML takes a minute for what is large here; its own test has the small texts.
        script = Script.model_validate({"records": case.script})
        patch.setattr(scripted, "load_script", lambda _path: script)
        registered, _ = home.worked(JOB)
        verdicts = check(home.deployment, registered)
        publish(home.deployment, registered)
        yield Hostile(home, registered, case, verdicts)


def as_json(value: object) -> Any:
    """A value after a way through JSON."""
    return json.loads(json.dumps(value))
