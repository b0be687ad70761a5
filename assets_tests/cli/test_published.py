"""history, rebuild-catalog, sweep, and the options of publish and rollback, as scripts use them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from assets_tests import workers
from assets_tests.homes import Home
from assets_tests.publishing import judged, published, worked
from batch_assets.cli.main import app
from batch_assets.errors import BatchAssetsError


@pytest.fixture
def run(home: Home, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in this process; gives its output, or its error when it is refused."""
    for name, value in workers.environment(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("USER", "ann")

    def command(*arguments: str) -> Any:
        done = CliRunner().invoke(app, arguments)
        if isinstance(done.exception, BatchAssetsError):
            return str(done.exception)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if "--json" in arguments else done.output

    return command


def test_a_publication_by_override_is_told_by_every_command(home: Home, run: Any) -> None:
    """publish, history and status name who, why and which checks; the text for people has it too."""
    version = judged(home, worked(home, "Sort"), failed=["drift"])
    assert "Reasons: drift: drift was looked at." in run("publish", "tiny")
    assert "an override needs a reason" in run("publish", "tiny", "--override", " ").lower()
    assert "Overridden: drift" in run("publish", "tiny", "--override", "a new season", "--publish-id", "n1")
    assert f"has taken tiny to {version.job_version} before" in run("publish", "tiny", "--publish-id", "n1")
    (move,) = run("history", "tiny", "--json")
    assert {**move, "at": "", "verdicts": {}} == {
        "sequence": 1, "at": "", "who": "ann", "kind": "publish", "from": None, "to": version.job_version, "verdicts": {},
        "override": {"reason": "a new season", "checks": ["drift"], "who": "ann", "at": move["at"]},
        "publication_id": "n1", "swept": False,
    }  # fmt: skip
    assert move["verdicts"]["drift"] is False
    assert run("status", "tiny", "--json")["override"] == move["override"]
    for shown in (run("history", "tiny"), run("status", "tiny")):
        assert "drift by ann: a new season" in " ".join(shown.split())


def test_history_is_newest_first_and_empty_is_said(home: Home, run: Any) -> None:
    """Before anything is published it is an empty list, and a job that is none is an error."""
    worked(home, "Sort")
    assert run("history", "tiny", "--json") == []
    assert "nothing published yet" in run("history", "tiny")
    assert "There is no job 'tinny'" in run("history", "tinny")
    first, second = published(home, "Sort"), published(home, "Put")
    assert run("rollback", "tiny", "--publish-id", "b1", "--json")["shows"] == first.job_version
    assert run("rollback", "tiny", "--publish-id", "b1", "--json")["changed"] is False
    assert [(move["kind"], move["to"]) for move in run("history", "tiny", "--json")] == [
        ("rollback", first.job_version),
        ("publish", second.job_version),
        ("publish", first.job_version),
    ]


def test_the_catalog_is_rebuilt_and_old_files_are_swept(home: Home, run: Any) -> None:
    """What would go, what has gone, and what is said of a version that cannot be shown any more."""
    first, second = published(home, "Sort"), published(home, "Put")
    home.deployment.settings.warehouse.write_bytes(b"damaged")
    assert run("rebuild-catalog", "--json") == {"published": {"tiny": second.job_version}, "left_out": {}}
    assert f"tiny ({second.job_version})" in " ".join(run("rebuild-catalog").split())
    options = ("sweep", "tiny", "--keep", "1", "--grace-h", "0")
    planned = run(*options, "--dry-run", "--json")
    assert [one["job_version"] for one in planned["versions"]] == [first.job_version]
    assert "would be removed; nothing was changed" in run(*options, "--dry-run")
    done = run(*options, "--json")
    assert (done["bytes"], done["versions"], done["dry_run"]) == (planned["bytes"], planned["versions"], False)
    assert "0 bytes removed." in run(*options)
    assert "were removed by ann" in run("rollback", "tiny")
    assert [move["swept"] for move in run("history", "tiny", "--json")] == [False, True]
