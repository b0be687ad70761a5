"""Publishing: only through the gate, by one pointer, and back again at once."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from assets_tests.factories import PROMPT, make_job
from assets_tests.homes import Home
from batch_assets.errors import GateError, InputError, StoreError, VersionError
from batch_assets.operations.check import check
from batch_assets.operations.export import export
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.work import work
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.warehouse import open_warehouse


def finished(home: Home, word: str, *, publish_it: bool = True) -> RegisteredVersion:
    """A checked version whose prompt starts with a word of its own, published if wanted."""
    make_job(home.jobs, prompt=PROMPT.replace("Sort", word))
    registered, _ = home.worked()
    check(home.deployment, registered)
    if publish_it:
        publish(home.deployment, registered)
    return registered


def seen_by_readers(home: Home) -> str:
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        rows = connection.execute("SELECT DISTINCT _job_version FROM published.tiny").fetchall()
    assert len(rows) == 1
    return str(rows[0][0])


def test_a_version_without_verdicts_is_not_published(home: Home) -> None:
    """Complete but unchecked is refused, and so is a verdict on other content."""
    make_job(home.jobs)
    registered = home.pinned()
    check(home.deployment, registered)  # judged while it was empty: says nothing about what is there now
    work(home.deployment, registered)
    with pytest.raises(GateError, match="coverage: no verdict on its present content by the present gate"):
        publish(home.deployment, registered)
    assert home.deployment.ledger.publications.current("tiny") is None
    assert not home.deployment.settings.warehouse.exists()


def test_an_incomplete_version_is_not_published(home: Home) -> None:
    """Coverage blocks, and the reason stands in the error."""
    make_job(home.jobs)
    registered = home.pinned()
    check(home.deployment, registered)
    with pytest.raises(GateError, match="coverage: 20 missing, 4 shards not sealed"):
        publish(home.deployment, registered)


def test_readers_see_the_published_version_and_its_history(home: Home) -> None:
    """The view, the history and the JSON pointer all follow the ledger's pointer."""
    first, second = finished(home, "Sort"), finished(home, "Put")
    assert seen_by_readers(home) == second.job_version
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        history = connection.execute(
            "SELECT kind, from_version, to_version, verdicts FROM published.tiny__history ORDER BY moved_at"
        ).fetchall()
        assert connection.execute("SELECT count(*) FROM published.tiny").fetchone() == (20,)
    assert [row[:3] for row in history] == [
        ("publish", None, first.job_version),
        ("publish", first.job_version, second.job_version),
    ]
    assert json.loads(history[0][3])["coverage"] is True
    pointer = json.loads(home.deployment.objects.get("published/tiny.json"))
    assert (pointer["job_version"], len(pointer["files"])) == (second.job_version, 4)
    assert pointer["files"][0]["rows"] == 5


def test_rollback_goes_back_step_by_step_and_by_name(home: Home) -> None:
    """Back is the version before; by name is any that was published; never one that was not."""
    one, two, three = finished(home, "Sort"), finished(home, "Put"), finished(home, "Lay")
    unpublished = finished(home, "File", publish_it=False)
    assert rollback(home.deployment, "tiny").job_version == two.job_version
    assert rollback(home.deployment, "tiny").job_version == one.job_version
    assert seen_by_readers(home) == one.job_version
    with pytest.raises(GateError, match="there is none before it"):
        rollback(home.deployment, "tiny")
    assert rollback(home.deployment, "tiny", three.job_version).changed
    with pytest.raises(GateError, match="was never published"):
        rollback(home.deployment, "tiny", unpublished.job_version)
    assert seen_by_readers(home) == three.job_version


def test_publishing_again_changes_nothing(home: Home) -> None:
    """Already published is said, not repeated in the history."""
    registered = finished(home, "Sort")
    assert not publish(home.deployment, registered).changed
    assert len(home.deployment.ledger.publications.history("tiny")) == 1


def test_nothing_is_switched_to_files_that_are_gone(home: Home) -> None:
    """A rollback to a version whose files are missing is refused before the pointer moves."""
    first, second = finished(home, "Sort"), finished(home, "Put")
    next((home.deployment.objects.root / "results/tiny" / first.job_version).glob("*.parquet")).unlink()
    with pytest.raises(StoreError, match=r"1 files of .* are missing or not as sealed"):
        rollback(home.deployment, "tiny")
    assert seen_by_readers(home) == second.job_version


@pytest.mark.parametrize("file_format", ["parquet", "csv", "jsonl"])
def test_export_writes_what_is_published_or_one_version(home: Home, tmp_path: Path, file_format: str) -> None:
    """A job exports the published rows, a version its own; all formats hold the same rows."""
    first, second = finished(home, "Sort"), finished(home, "Put", publish_it=False)
    target = tmp_path / f"out.{file_format}"
    read = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}[file_format]
    for name, version in (("tiny", first.job_version), (second.job_version, second.job_version)):
        done = export(home.deployment, name, file_format, target)  # type: ignore[arg-type]
        assert (done.rows, done.job_version) == (20, version)
        query = f"SELECT count(*), min(record_id), min(_job_version) FROM {read}('{target}')"
        assert duckdb.execute(query).fetchall() == [(20, "R-00000", version)]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [target.name]


def test_export_refuses_what_is_not_there(home: Home, tmp_path: Path) -> None:
    """Nothing published, no such folder: said in a sentence."""
    registered = finished(home, "Sort", publish_it=False)
    with pytest.raises(VersionError, match="has nothing published yet"):
        export(home.deployment, "tiny", "csv", tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"does not exist\. Create it first"):
        export(home.deployment, registered.job_version, "csv", tmp_path / "no" / "a.csv")


def test_a_verdict_counts_only_against_the_baseline_it_was_given_against(home: Home) -> None:
    """Judged before another version was published, it has to be judged again."""
    early = finished(home, "Sort", publish_it=False)
    finished(home, "Put")
    with pytest.raises(GateError, match="drift: no verdict"):
        publish(home.deployment, early)
    check(home.deployment, early)
    assert publish(home.deployment, early).changed


def test_a_verdict_counts_only_by_the_thresholds_it_was_given_by(home: Home) -> None:
    """A gate that was made stricter is not passed with an old verdict."""
    finished(home, "Sort", publish_it=False)
    make_job(home.jobs, gate={"dead_letters": {"rate_max": 0.0}})
    with pytest.raises(GateError, match="dead_letters: no verdict"):
        publish(home.deployment, home.deployment.resolve("tiny"))


def test_sealed_files_are_verified_before_the_pointer_moves(home: Home) -> None:
    """A file that was swapped after the checks stops the publication, and readers keep what they have."""
    first = finished(home, "Sort")
    second = finished(home, "Put", publish_it=False)
    one, two, *_ = sorted((home.deployment.objects.root / "results/tiny" / second.job_version).glob("*.parquet"))
    one.write_bytes(two.read_bytes())
    with pytest.raises(StoreError, match="not the file that was sealed"):
        publish(home.deployment, second)
    assert seen_by_readers(home) == first.job_version
    one.write_bytes(b"garbage")
    coverage = check(home.deployment, second)[0]
    assert (coverage.passed, coverage.numbers["files_altered"], coverage.numbers["missing"]) == (False, 1, 5)


def test_one_job_s_damaged_files_do_not_keep_another_from_being_published(home: Home) -> None:
    """The damaged job is left out of the catalog; the healthy one is published."""
    damaged = finished(home, "Sort")
    for path in (home.deployment.objects.root / "results/tiny" / damaged.job_version).glob("*.parquet"):
        path.unlink()
    make_job(home.jobs, name="healthy")
    registered, _ = home.worked("healthy")
    check(home.deployment, registered)
    publish(home.deployment, registered)
    with open_warehouse(home.deployment.settings.warehouse) as connection:
        assert connection.execute("SELECT count(*) FROM published.healthy").fetchone() == (20,)
