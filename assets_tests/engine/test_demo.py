"""The demo as the README promises it: the real model, the real engine, through Dagster, from end to end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from batch_assets.operations.jobs import PACKAGED
from batch_assets.settings import Settings

pytestmark = [pytest.mark.engine, pytest.mark.alone, pytest.mark.timeout(900)]

README = Path(__file__).parents[2] / "README.md"
MAIN = "import sys; from batch_assets.cli.main import main; sys.argv[0] = 'batch-assets'; main()"


@dataclass(frozen=True)
class Demo:
    """A home in which the demo has run, and what it printed."""

    home: Path
    output: str

    def cli(self, *arguments: str, expect: int = 0) -> str:
        return cli(self.home, *arguments, expect=expect)


def cli(home: Path, *arguments: str, expect: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env={**os.environ, "BATCH_ASSETS_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expect, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One run of the demo for all tests here: it takes minutes."""
    home = tmp_path_factory.mktemp("demo") / "home"
    return Demo(home, cli(home, "demo"))


def shape(output: str) -> list[str]:
    """The printed lines without what differs between machines: numbers, ids, rates, answers."""
    lines = []
    for line in output.split("\n"):
        if re.match(r"[\d,]+ of [\d,]+ records", line) or line.startswith(("T-0", "Starting the engine")):
            continue  # progress, sample rows and where the log is
        text = re.sub(r"v1_[0-9a-f]{12}", "v1_<id>", line)
        text = re.sub(r"\([0-9a-f]{12}\)", "(<digest>)", text)
        lines.append(re.sub(r"\s+", " ", re.sub(r"\d[\d,.]*", "#", text)).strip())
    return [line for line in lines if line]


def test_the_readme_shows_what_the_demo_prints(demo: Demo) -> None:
    """The README's output is the real one, up to numbers, ids and answers."""
    block = re.search(r"<!-- demo-output.*?```text\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    assert shape(block.group(1)) == shape(demo.output)


def test_every_record_has_its_outcome_and_the_known_bad_ones_are_dead(demo: Demo) -> None:
    """Two tickets over the cap and one empty one never reach the engine; the rest is answered or given up."""
    state = json.loads(demo.cli("status", "--json"))
    assert state["results"] + state["dead_letters"] == state["records"] == 120
    reasons: dict[str, list[str]] = {}
    for letter in json.loads(demo.cli("dead-letters", "support_tickets", "--json")):
        reasons.setdefault(letter["reason"], []).append(letter["record_id"])
    assert reasons["input_too_long"] == ["T-0023", "T-0087"]
    assert reasons["empty_input"] == ["T-0041"]
    assert set(reasons) <= {"input_too_long", "empty_input", "truncated", "invalid_output"}


def test_the_published_table_is_typed_and_labelled(demo: Demo) -> None:
    """Readers query one view: answers of the schema's types, labels equal to the source's."""
    source = {row["ticket_id"]: row for row in read_jsonl(PACKAGED / "support_tickets" / "tickets.jsonl")}
    with duckdb.connect(str(demo.home / "warehouse.duckdb"), read_only=True) as connection:
        rows = connection.execute(
            "SELECT ticket_id, category, summary, entities, acl, _engine FROM published.support_tickets"
        ).fetchall()
    assert rows
    for ticket_id, category, summary, entities, acl, engine in rows:
        assert category in {"billing", "technical", "account", "shipping", "feedback"}
        assert summary
        assert isinstance(entities, list)
        assert acl == source[ticket_id]["acl"]
        assert engine.startswith("vllm ")


def test_the_prefix_cache_serves_the_instruction(demo: Demo) -> None:
    """The instruction is first and the same for all: a good part of all prompt tokens is not computed again."""
    assert json.loads(demo.cli("status", "--json"))["prefix_hit_rate"] > 0.3


def test_a_second_demo_recomputes_nothing_and_says_so(demo: Demo) -> None:
    """Same version, no engine, same pointer."""
    again = demo.cli("demo")
    assert "is pinned already and nothing in it has changed" in again
    assert again.count("Nothing is recomputed.") == 2


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def copied_model(tmp_path: Path) -> Path:
    """A models directory with the demo's model, as links that a test may replace by changed files."""
    original = Settings().models / "smollm2-135m-instruct"
    copy = tmp_path / "models" / original.name
    copy.mkdir(parents=True)
    for path in original.iterdir():
        if path.is_file() and not path.name.startswith("."):
            (copy / path.name).symlink_to(path)
    return copy


@pytest.mark.case("C30")
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer_config.json"])
def test_one_changed_byte_in_the_model_stops_the_worker(
    demo: Demo, copied_model: Path, name: str, tmp_path: Path
) -> None:
    """The model is verified at load; the file that differs is named, and no record is touched."""
    models = {"BATCH_ASSETS_MODELS": str(copied_model.parent)}
    home = tmp_path / "home"
    cli(home, "pin", "support_tickets", **models)
    cli(home, "plan", "support_tickets", **models)
    content = bytearray((copied_model / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied_model / name).unlink()
    (copied_model / name).write_bytes(content)
    refused = cli(home, "work", "support_tickets", expect=2, **models)
    assert name in refused
    assert json.loads(cli(home, "status", "--json"))["results"] == 0
