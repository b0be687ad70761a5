"""The report: all of what a person reviews, on one page that fetches nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from assets_tests.factories import CATEGORIES, PROMPT, make_job, make_records, record_id
from assets_tests.homes import Home
from assets_tests.hostile.corpus import CHARACTERS, HUGE, INJECTIONS, LONG
from batch_assets.core.quoting import legible
from batch_assets.engine import scripted
from batch_assets.engine.script import Script
from batch_assets.errors import InputError
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish
from batch_assets.operations.report import SAMPLE, report, write_report
from batch_assets.storage.plans import RegisteredVersion

PAGE_BYTES_MAX = 500_000
LOOSE_GATE = {"dead_letters": {"rate_max": 1.0}, "drift": {"blocking": False}}


class Page(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self._texts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def section(self, name: str) -> str:
        """The text of the part under a heading."""
        part = re.search(rf'<h2 id="{name}">(.*?)(?=<h2|</body>)', self.source, re.DOTALL)
        assert part is not None, name
        return Page(part[1]).text

    def check_state(self, name: str) -> str:
        found = re.search(rf"<h3>{name}</h3>\s*<span class=\"word \w+\">(\w+)</span>", self.source)
        assert found is not None, name
        return found[1]


def answer(category: str, summary: str = "About an order.") -> str:
    return json.dumps({"category": category, "summary": summary, "entities": []}, ensure_ascii=False)


def worked(home: Home, *, prompt: str = PROMPT, gate: Mapping[str, object] = LOOSE_GATE) -> RegisteredVersion:
    """40 records, one of them a dead letter; 10 golden labels, of which the answers get 9."""
    records = {record_id(number): {"text": answer(CATEGORIES[number % 3])} for number in range(40)}
    records[record_id(31)] = {"text": "no JSON"}
    golden = {record_id(number): CATEGORIES[number % 3] for number in range(9)} | {record_id(9): "bug"}
    make_job(home.jobs, records=40, shard_size=10, script={"records": records}, golden=golden, prompt=prompt, gate=gate)
    return home.worked()[0]


def test_the_page_has_what_a_person_reviews(home: Home) -> None:
    """Verdicts with numbers and pictures, golden set, dead letters, waste, recipe, sample and history."""
    version = worked(home)
    check(home.deployment, version)
    publish(home.deployment, version)
    page = Page(report(home.deployment, version))
    pinned = home.deployment.version(version)
    assert "Published: readers see this version." in page.text
    for name in home.deployment.job("tiny").required_checks:
        assert page.check_state(name) == "passed"
    assert "39 results + 1 dead letters = 40 records" in page.section("checks")
    assert "9 of 10 golden records agree" in page.section("checks")
    assert record_id(9) in page.section("checks")  # the one that is wrong
    assert any(value.startswith("data:image/svg+xml;base64,") for name, value in page.attributes if name == "src")
    assert "golden.jsonl" in page.section("suite")
    assert "records 10" in page.section("suite")
    assert "accuracy_min" in page.section("suite")
    assert "invalid_output: 1" in page.section("dead-letters")
    assert record_id(31) in page.section("dead-letters")
    assert "failed_attempt 3" in page.section("work")
    for digest in (
        pinned.model.digest,
        pinned.prompt.sha256,
        pinned.output_schema.sha256,
        pinned.snapshot.sources[0].sha256,
    ):
        assert digest in page.section("recipe")
    assert "Sort the record into a category" in page.section("recipe")
    assert page.section("sample").count("The record") == SAMPLE
    assert version.job_version in page.section("history")


def test_missing_and_stale_verdicts_are_said_and_not_made(home: Home) -> None:
    """A check never made, and those whose content or gate has changed since, do not count."""
    version = worked(home)
    check(home.deployment, version, only=["coverage", "schema", "evaluation"])
    page = Page(report(home.deployment, version))
    assert [page.check_state(name) for name in ("coverage", "evaluation", "dead_letters")] == [
        "passed",
        "passed",
        "missing",
    ]
    assert "The gate refuses this version." in page.text

    worked(home, gate={**LOOSE_GATE, "evaluation": {"accuracy_min": 0.99}})  # the same version by another gate
    page = Page(report(home.deployment, version))
    assert [page.check_state(name) for name in ("coverage", "evaluation", "dead_letters")] == [
        "passed",
        "stale",
        "missing",
    ]
    assert "judged by another gate" in page.section("checks")

    home.deployment.ledger.interventions.retry_dead_letters(version.job_version, "invalid_output", who="me")
    page = Page(report(home.deployment, version))
    assert [page.check_state(name) for name in ("coverage", "evaluation", "schema")] == ["stale"] * 3
    assert "other results or dead letters" in page.section("checks")
    assert home.deployment.ledger.publications.kept_verdicts(version.job_version)[0].verdict.check == "coverage"


def test_the_page_needs_nothing_and_its_policy_forbids_the_rest(home: Home) -> None:
    """No script, nothing fetched, no style but its own by digest."""
    version = worked(home)
    check(home.deployment, version)
    page = Page(report(home.deployment, version))
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base", "form", "svg", "a:external"}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("style", "srcset", "action")]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert all(value.startswith("data:image/svg+xml;base64,") for name, value in page.attributes if name == "src")
    style = re.search(r"<style>(.*?)</style>", page.source, re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import", style[1])
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert (
        "content",
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
    ) in (page.attributes)


def test_the_sample_is_the_same_every_time_and_stands_beside_its_records(home: Home) -> None:
    """Each result is shown with the record that it answers."""
    version = worked(home)
    first, again = (Page(report(home.deployment, version)).section("sample") for _ in range(2))
    assert first == again
    ids = re.findall(r"R-\d{5}", first)
    assert len(set(ids)) == SAMPLE
    assert ids == sorted(ids)
    for one in ids:
        number = int(one.removeprefix("R-"))
        assert (
            f"{one} shard {number // 10} The record subject Subject {number} body This is the body of record {number};"
            in first
        )


@pytest.mark.parametrize("texts", ["injections", "characters"])
def test_hostile_texts_stay_texts(home: Home, texts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As id, record, class, label, answer and error: letters on the page, and the page stays small."""
    corpus = {"injections": INJECTIONS, "characters": {**CHARACTERS, **LONG}}[texts]
    usual = make_records(1)[0]
    alive = [
        (f"{number} {text}"[:900], text) for number, text in enumerate([*corpus.values(), *HUGE.values()][-SAMPLE:])
    ]
    dead = [(f"dead {text}"[:900], text) for text in list(corpus.values())[:20] if text.strip()]
    ids = list(dict.fromkeys([*alive, *dead]))
    make_job(
        home.jobs,
        records=[
            {**usual, "record_id": id_, "body": text or "-", "record_class": id_, "acl": text} for id_, text in ids
        ],
        shard_size=100,
        script={"records": {}},
        decoding={"input_tokens_max": 5_000_000},
        golden={id_: "question" for id_, _ in ids if id_.isprintable()},
        gate=LOOSE_GATE,
    )
    script = {
        **{id_: {"text": answer("bug", text[:200])} for id_, text in alive},
        **{id_: {"error": text} for id_, text in dead},
    }
    # YAML cannot write all of these down.
    monkeypatch.setattr(scripted, "load_script", lambda _path: Script.model_validate({"records": script}))
    version, _ = home.worked()
    check(home.deployment, version)
    source = report(home.deployment, version)
    page = Page(source)
    assert len(source.encode()) < PAGE_BYTES_MAX
    assert page.tags <= ALLOWED, page.tags - ALLOWED
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert not [char for char in source if not char.isprintable() and char != "\n"]
    shown = [" ".join(legible(text[:100]).split()) for _, text in alive if text.strip()]
    assert [text for text in shown if text not in page.text] == []


ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "span",
        "div",
        "b",
        "nav",
        "a",
        "ul",
        "li",
    ),
    *("section", "header", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "img"),
}


def test_a_version_whose_files_are_gone_still_has_a_report(home: Home) -> None:
    """What can be told is told; the sample says what is wrong."""
    version = worked(home)
    (home.jobs / "tiny" / "records.parquet").unlink()
    page = Page(report(home.deployment, version))
    assert "cannot be read" in page.section("sample")
    assert "records.parquet" in page.section("sample")
    assert "invalid_output: 1" in page.section("dead-letters")


def test_a_job_folder_that_is_gone_is_said(home: Home) -> None:
    """Without the folder there is no gate; the verdicts that there are are shown, and nothing can be published."""
    version = worked(home)
    check(home.deployment, version, only=["schema"])
    (home.jobs / "tiny" / "defs.yaml").unlink()
    page = Page(report(home.deployment, version))
    assert "The gate is not known" in page.text
    assert page.check_state("schema") == "stale"


def test_the_report_is_written_whole_or_not_at_all(home: Home, tmp_path: Path) -> None:
    """In the home by default; a place that cannot be written is told, and leaves nothing."""
    version = worked(home)
    kept = write_report(home.deployment, version)
    assert kept == home.deployment.settings.root / "reports" / "tiny" / f"{version.job_version}.html"
    chosen = write_report(home.deployment, version, tmp_path / "r.html")
    for path in (kept, chosen):
        assert path.read_text().rstrip().endswith("</html>")
        assert [one.name for one in path.parent.glob(".report-*")] == []
    with pytest.raises(InputError, match="--output"):
        write_report(home.deployment, version, tmp_path / "nowhere" / "r.html")
    with pytest.raises(InputError, match="it is a folder"):
        write_report(home.deployment, version, tmp_path)
