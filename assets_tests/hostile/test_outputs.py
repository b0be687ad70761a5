"""What leaves the system: exports, listings for people and for programs, metadata for Dagster's pages."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from assets_tests.hostile.conftest import JOB, Hostile
from assets_tests.hostile.corpus import CHARACTERS, INJECTIONS, LONG
from batch_assets.assets.published_page import published_metadata
from batch_assets.assets.verdict_events import check_result
from batch_assets.cli import inspect, operate, release
from batch_assets.cli.main import main
from batch_assets.core.verdicts import Verdict
from batch_assets.operations.export import Format, export

LINE_CHARS_MAX = 4_000
SELECT_GRAPHIC = re.compile(rb"\x1b\[[0-9;]*m")  # rich's own: bold headings
Cli = Callable[..., str]


@pytest.fixture
def cli(hostile: Hostile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process, on the hostile home."""

    def run(*arguments: str, expect: int = 0) -> str:
        for module in (inspect, operate, release):
            monkeypatch.setattr(module, "deployment", lambda: hostile.home.deployment)
        monkeypatch.setattr(sys, "argv", ["batch-assets", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert (ended.value.code or 0) == expect, said.err
        return said.out + said.err

    return run


def assert_harmless(text: str) -> None:
    """Nothing that a terminal obeys, and no line that fills it for minutes."""
    assert {char for char in text if not char.isprintable()} <= {"\n"}
    assert max(map(len, text.split("\n"))) <= LINE_CHARS_MAX


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["versions"],
        ["dead-letters", JOB],
        ["dead-letters", JOB, "--reason", "engine_error"],
        ["check", JOB],
        ["shards", JOB],
        ["publish", JOB],
    ],
)
def test_listings_for_people_hold_only_what_prints(cli: Cli, arguments: list[str]) -> None:
    """No control character, no escape sequence, no endless line; markup stands there as it is."""
    said = cli(*arguments)
    assert_harmless(said)
    if "--reason" in arguments:
        assert "[bold red]" in said


@pytest.mark.parametrize("command", ["status", "versions", "dead-letters", "check", "shards"])
def test_json_is_valid_faithful_and_prints(cli: Cli, hostile: Hostile, command: str) -> None:
    """What does not print is escaped, so a program reads the very id and a terminal obeys nothing."""
    said = cli(command, *([] if command == "versions" else [JOB]), "--json")
    assert {char for char in said if not char.isprintable()} <= {"\n"}
    read = json.loads(said)
    if command == "dead-letters":
        letters = hostile.home.dead_letters(hostile.registered)
        assert [(one["record_id"], one["error"]) for one in read] == [(one.record_id, one.error) for one in letters]


def test_names_that_are_no_jobs_are_quoted_back_harmlessly(cli: Cli) -> None:
    """A wrong argument is repeated in the message; a terminal obeys nothing of it."""
    for text in (*INJECTIONS.values(), *CHARACTERS.values(), LONG["10 kB"]):
        if text and not text.startswith("-") and "\x00" not in text:  # no process can be given NUL
            assert_harmless(cli("status", text, expect=2).rstrip("\n"))


def test_a_terminal_gets_no_sequence_of_a_record(hostile: Hostile) -> None:
    """On a real terminal: after taking away rich's bold, nothing is left that is not text."""
    settings = hostile.home.deployment.settings
    environment = {
        **os.environ,
        "BATCH_ASSETS_HOME": str(settings.home),
        "BATCH_ASSETS_JOBS": str(hostile.home.jobs),
        "BATCH_ASSETS_LEDGER": settings.ledger_url,
        "TERM": "xterm-256color",
        "COLUMNS": "300",
    }
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "from batch_assets.cli.main import main; main()",
        "dead-letters",
        JOB,
        "--reason",
        "engine_error",
    ]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert process.wait() == 0
    text = SELECT_GRAPHIC.sub(b"", said).decode()
    assert "every control character" in text
    assert {char for char in text if not char.isprintable()} <= {"\n", "\r"}


def expected_rows(hostile: Hostile) -> dict[str, tuple[str, str]]:
    """Record id → (label, summary) of every stored result."""
    stored = hostile.case.stored
    return {id_: (str(row["acl"]), str(row.get("summary", "x"))) for id_, row in stored.items()}


@pytest.fixture
def exported(hostile: Hostile, tmp_path: Path) -> Callable[[Format], Path]:
    def write(file_format: Format) -> Path:
        done = export(hostile.home.deployment, JOB, file_format, tmp_path / f"out.{file_format}")
        assert done.rows == len(hostile.case.stored)
        return done.output

    return write


def csv_rows(path: Path) -> dict[str, dict[str, str]]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8", newline="") as file:
        return {row["record_id"]: row for row in csv.DictReader(file, strict=True)}


def test_parquet_and_jsonl_and_csv_exports_are_faithful(hostile: Hostile, exported: Callable[[Format], Path]) -> None:
    """Read back by other programs' means, each row has the very id, label and answer."""
    wanted = expected_rows(hostile)
    parquet = pq.read_table(exported("parquet")).to_pylist()
    assert {row["record_id"]: (row["acl"], row["summary"]) for row in parquet} == wanted
    lines = exported("jsonl").read_bytes().decode().split("\n")
    rows = [json.loads(line, parse_constant=_refuse) for line in lines if line]
    assert {row["record_id"]: (row["acl"], row["summary"]) for row in rows} == wanted
    cells = csv_rows(exported("csv"))
    assert {id_: (row["acl"], row["summary"]) for id_, row in cells.items()} == wanted
    assert all(isinstance(json.loads(row["tags"]), dict) for row in cells.values())


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def test_a_spreadsheet_runs_nothing(hostile: Hostile, exported: Callable[[Format], Path]) -> None:
    """Every cell that would be a formula begins with an apostrophe, and is otherwise as stored; no other cell changes."""
    stored = expected_rows(hostile)
    rows = csv_rows(exported("spreadsheet"))
    originals = {id_ if id_ in rows else f"'{id_}": id_ for id_ in stored}
    assert set(rows) == set(originals)
    for shown, row in rows.items():
        label, summary = stored[originals[shown]]
        for cell, original in ((shown, originals[shown]), (row["acl"], label), (row["summary"], summary)):
            assert cell in (original, f"'{original}")
            assert not re.match(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\ufeff]*[=+\-@]|[\t\r\n]", cell), cell[:80]
    assert len(originals) - sum(1 for shown, id_ in originals.items() if shown == id_) >= 8


def test_metadata_for_pages_is_plain_and_short(hostile: Hostile) -> None:
    """Ids and answers reach Dagster as text or table cells, never as Markdown, and a page stays a page."""
    ids = tuple(hostile.case.stored)
    verdict = Verdict(
        check="coverage",
        passed=False,
        blocking=True,
        summary="s",
        numbers={"missing": 1, "missing_by_id": dict.fromkeys(ids, 1)},
        thresholds={},
        example_ids=ids,
    )
    shown = check_result(dg.AssetKey([JOB, "v"]), verdict).metadata
    page = published_metadata(hostile.home.deployment, JOB, hostile.registered.job_version)
    for name, value in {**shown, **page}.items():
        if isinstance(value, dg.MarkdownMetadataValue):
            assert name == "drift"
    assert len(json.dumps(shown["example_record_ids"].value)) < 300 * len(ids)
    by_id = shown["missing_by_id"].value
    assert isinstance(by_id, dict)
    assert all(one.replace("\n", "").isprintable() for one in by_id)
    assert by_id["…"] == f"{len(ids) - 100} more"
    sample = page["sample"]
    assert isinstance(sample, dg.TableMetadataValue)
    assert all(len(str(cell)) <= 200 for record in sample.records for cell in record.data.values())
