"""What an operator does on the command line when something is stuck: it says what it did, and can be done twice."""

from __future__ import annotations

import json

import pytest

from assets_tests.factories import make_job, record_id, write_script
from assets_tests.homes import Home, temporary_home
from assets_tests.postgresql import Server
from assets_tests.waiting import wait_for
from assets_tests.workers import batch_assets, start_worker
from batch_assets.operations.check import check
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.work import work

BAD = {record_id(3): {"text": "not JSON"}, record_id(4): {"error": "out of memory"}, record_id(8): {"text": "not JSON"}}


def test_dead_letters_are_listed_by_reason_with_examples(home: Home) -> None:
    """A count and examples for each reason; each record with --reason; everything as JSON."""
    make_job(home.jobs, records=10, script={"records": BAD})
    registered, _ = home.worked()
    listing = batch_assets(home, "dead-letters", registered.job_version).stdout
    lines = {line.split()[0]: line for line in listing.splitlines()[1:]}
    assert "2  " in lines["invalid_output"]
    assert f"{record_id(3)}, {record_id(8)}" in lines["invalid_output"]
    assert "out of memory" in lines["engine_error"]
    one = batch_assets(home, "dead-letters", registered.job_version, "--reason", "engine_error").stdout
    assert record_id(4) in one
    assert record_id(3) not in one
    letters = json.loads(batch_assets(home, "dead-letters", registered.job_version, "--json").stdout)
    assert {letter["record_id"] for letter in letters} == set(BAD)


def test_a_class_of_dead_letters_is_put_back_and_answered(home: Home) -> None:
    """Three fresh attempts for each; sealed shards are sealed anew, and the version is whole again."""
    job = make_job(home.jobs, records=10, shard_size=5, script={"records": BAD})
    registered, _ = home.worked()
    before = home.sealed_rows(registered)
    write_script(job, {})
    done = batch_assets(home, "dead-letters", registered.job_version, "--retry", "invalid_output")
    assert "Retry 1: 2 records in 2 shards" in done.stdout
    again = batch_assets(home, "dead-letters", registered.job_version, "--retry", "invalid_output")
    assert (again.returncode, "nothing was changed" in again.stdout) == (0, True)
    assert home.status(registered)["pending"] == 2
    work(home.deployment, registered)
    state = home.status(registered)
    assert (state["results"], state["dead_letters_by_reason"]) == (9, {"engine_error": 1})
    rows = home.sealed_rows(registered)
    assert [row for row in rows if row["record_id"] not in BAD] == [
        row for row in before if row["record_id"] not in BAD
    ]
    assert all(verdict.passed for verdict in check(home.deployment, registered) if verdict.check != "dead_letters")


def test_dead_letters_of_a_published_version_stay(home: Home) -> None:
    """What readers see does not change under them; the message says what to do first."""
    make_job(home.jobs, records=10, script={"records": BAD}, gate={"dead_letters": {"rate_max": 0.5}})
    registered, _ = home.worked()
    check(home.deployment, registered)
    publish(home.deployment, registered)
    for arguments in (
        ("dead-letters", registered.job_version, "--retry", "invalid_output"),
        ("cancel", registered.job_version),
    ):
        refused = batch_assets(home, *arguments)
        assert refused.returncode == 1
        assert "what readers of tiny see now" in refused.stderr
    assert home.status(registered)["dead_letters"] == 3


def test_an_unknown_reason_state_or_shard_is_bad_input(home: Home) -> None:
    """Status 2, and the message lists what there is."""
    make_job(home.jobs, records=10, script={})
    registered = home.pinned()
    for arguments, expected in (
        (("dead-letters", registered.job_version, "--retry", "bad_mood"), "invalid_output"),
        (("dead-letters", registered.job_version, "--reason", "bad_mood"), "invalid_output"),
        (("shards", registered.job_version, "--state", "sleeping"), "needs_operator"),
        (("requeue", registered.job_version, "99"), "has no shard 99"),
    ):
        refused = batch_assets(home, *arguments)
        assert (refused.returncode, expected in refused.stderr) == (2, True), refused.stderr


def test_a_cancelled_version_stops_its_workers_and_stays_cancelled(home: Home) -> None:
    """The worker hears it at its next call and ends; nothing takes the version up again; twice is harmless."""
    script = {"defaults": {"delay_s": 0.2}}
    make_job(
        home.jobs, records=400, shard_size=50, script=script, engine={"sequences_max": 4}, renew_every_s=0.2, lease_s=60
    )
    registered = home.pinned()
    worker = start_worker(home, registered.job_version)
    wait_for("first results", lambda: home.status(registered)["results"] > 0)
    for _ in range(2):
        done = batch_assets(home, "cancel", registered.job_version)
        assert (done.returncode, "is cancelled" in done.stdout) == (0, True)
    assert worker.wait(60) == 0
    state = home.status(registered)
    assert state["shards"]["pending"] == state["shards"]["leased"] == 0
    for command in ("work", "run", "plan"):
        refused = batch_assets(home, command, registered.job_version)
        assert (refused.returncode, "was cancelled" in refused.stderr) == (2, True), refused.stderr


def test_the_content_of_a_cancelled_version_can_be_run_after_all(home: Home) -> None:
    """Retired, it is forgotten; pinned again, it starts anew under the same id."""
    make_job(home.jobs, records=10, shard_size=5, script={"records": BAD})
    registered = home.pinned()
    work(home.deployment, registered, wanted=range(1))
    batch_assets(home, "cancel", registered.job_version)
    assert "cancelled" in batch_assets(home, "pin", "tiny").stdout
    assert "is forgotten" in batch_assets(home, "retire", registered.job_version, "--forget").stdout
    make_job(home.jobs, records=10, shard_size=5, script={})
    anew, _ = home.worked()
    assert anew.job_version == registered.job_version
    assert home.status(anew)["results"] == 10


def test_a_published_version_that_was_retired_can_be_rolled_back_to(home: Home) -> None:
    """Its rows in the ledger are gone, its sealed files are not."""
    make_job(home.jobs, records=10, script={})
    first, _ = home.worked()
    check(home.deployment, first)
    publish(home.deployment, first)
    refused = batch_assets(home, "retire", first.job_version)
    assert (refused.returncode, "what readers of tiny see now" in refused.stderr) == (1, True)
    make_job(home.jobs, records=10, script={}, prompt="Other.\n<!-- record -->\n{{ subject }} {{ body }}\n")
    second, _ = home.worked()
    check(home.deployment, second)
    publish(home.deployment, second)
    for _ in range(2):
        assert "is retired" in batch_assets(home, "retire", first.job_version).stdout
    kept = batch_assets(home, "retire", first.job_version, "--forget")
    assert (kept.returncode, "can be rolled back to" in kept.stderr) == (1, True)
    rollback(home.deployment, "tiny")
    assert home.status(first)["published"] == first.job_version


@pytest.fixture
def postgresql_home(postgresql: Server, tmp_path_factory: pytest.TempPathFactory) -> Home:
    with temporary_home(tmp_path_factory.mktemp("pg"), ledger=postgresql.new_database()) as opened:
        yield opened


def test_the_same_commands_on_postgresql(postgresql_home: Home) -> None:
    """From pin to rollback through Dagster, with the ledger in PostgreSQL: only a setting is different."""
    home = postgresql_home
    make_job(
        home.jobs,
        records=20,
        shard_size=5,
        workers=2,
        script={"records": BAD},
        gate={"dead_letters": {"rate_max": 0.5}},
    )
    for command in (("pin", "tiny"), ("run", "tiny"), ("check", "tiny"), ("publish", "tiny")):
        done = batch_assets(home, *command)
        assert done.returncode == 0, done.stderr
    state = json.loads(batch_assets(home, "status", "tiny", "--json").stdout)
    assert (state["results"], state["dead_letters"], state["published"]) == (17, 3, state["version"])
    assert not (home.deployment.settings.root / "ledger.sqlite").exists()
