"""kill -9 at every named place of the code, and a restart: nothing lost, nothing doubled, the same command goes on."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import batch_assets
from assets_tests.factories import make_job, record_id
from assets_tests.homes import Home, temporary_home
from assets_tests.invariants import check
from assets_tests.postgresql import Server
from assets_tests.waiting import wait_for
from assets_tests.workers import Command
from batch_assets.operations.check import check as check_version
from batch_assets.operations.intervene import cancel
from batch_assets.operations.pin import pin
from batch_assets.operations.publish import publish
from batch_assets.operations.work import work
from batch_assets.storage.plans import RegisteredVersion

RECORDS = 30
BAD = {record_id(3): {"text": "not JSON"}, record_id(12): {"kills_engine": True}, record_id(20): {"delay_s": 0.6}}
TRANSACTION = ("before_commit", "after_commit")

# The commands of a version's life in order; each place is passed by one of them.
LIFE: dict[str, tuple[str, ...]] = {
    "pin": ("migrate", "register"),
    "plan": ("attach", "plan"),
    "work": ("claim", "put", "renew", "trial", "waste", "complete", "reclaim", "release", "engine", "seal"),
    "requeue": ("requeue",),
    "dead-letters": ("retry_dead_letters",),
    "check": ("verdicts",),
    "publish": ("publish",),
    "cancel": ("cancel",),
    "retire": ("retire", "drop_rows", "forget"),
}
# Partitions are attached on PostgreSQL; rows are deleted on SQLite. The value: not on PostgreSQL?
ELSEWHERE = {"attach": False, "drop_rows": True}
# Pinning a snapshot that was moved, and a word of a worker that was frozen: one idempotent update each.
AT_REST = {"move_files", "seen_alive"}
# These are passed by publishers and sweepers, which have tests of their own.
KILLED_IN = {
    "catalog": "operations/test_swaps.py",
    "pointer": "operations/test_swaps.py",
    "merge": "operations/test_changes.py",
    "file_set": "operations/test_changes.py",
    "sweep": "operations/test_sweep.py",
    "remove_files": "operations/test_sweep.py",
    "remove_snapshots": "operations/test_sweep.py",
}


def places() -> list[str]:
    """Every failpoint of the code, found where it stands."""
    found: list[str] = []
    for path in sorted(Path(batch_assets.__file__).parent.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found += [
            f"{name}.{moment}" for name in re.findall(r'\.write\("([a-z_]+)"\)', source) for moment in TRANSACTION
        ]
        found += re.findall(r'failpoint\("([a-z_.]+)"\)', source)
    return found


def run(home: Home, *arguments: str, failpoints: str = "") -> int:
    command = Command(home, *arguments, failpoints=failpoints)
    status = command.wait(120)
    assert "Traceback" not in command.log.read_text(), command.log.read_text()
    return status


@pytest.fixture(params=["sqlite", "postgresql"])
def crash_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A home whose ledger has not been opened yet, on each database."""
    server: Server | None = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    with temporary_home(tmp_path, ledger=None if server is None else server.new_database()) as home:
        make_job(
            home.jobs,
            records=RECORDS,
            shard_size=10,
            renew_every_s=0.1,
            lease_s=60,
            recoveries_max=50,
            script={"records": BAD},
            gate={"dead_letters": {"rate_max": 0.5}},
        )
        yield home


def arguments_of(command: str, place: str) -> tuple[str, ...]:
    more = {"requeue": ("0",), "dead-letters": ("--retry", "invalid_output")}.get(command, ())
    return (command, "tiny", *more, *(("--forget",) if place.startswith("forget") else ()))


def prepare(home: Home, command: str, place: str) -> None:
    """Bring the version to where the command has something to do."""
    if command == "pin":
        return
    if command == "plan":
        pin(home.deployment, home.deployment.job("tiny"))
        return
    registered = home.pinned()
    if place.startswith("reclaim"):  # somebody has to have died with a lease
        assert run(home, "work", "tiny", failpoints="put.before_commit=kill") == -signal.SIGKILL
    if command == "requeue":
        leases = home.deployment.ledger.leases
        lease = leases.claim(registered.job_version, owner="w", lease_s=60, wanted=range(1))
        assert lease is not None
        leases.release(lease, trouble="stuck", recoveries_max=1)
    if command in ("dead-letters", "check", "publish"):
        work(home.deployment, registered)
    if command == "publish":
        check_version(home.deployment, registered)
    if command == "retire":
        cancel(home.deployment, registered)


CASES = [(command, place) for command, names in LIFE.items() for place in places() if place.partition(".")[0] in names]


@pytest.mark.parametrize(("command", "place"), [case for case in CASES if not case[1].startswith("release")])
def test_killed_at_a_named_place_the_command_goes_on(crash_home: Home, command: str, place: str) -> None:
    """The process dies there, the same command is given again, and the end is as if nothing had happened."""
    if ELSEWHERE.get(place.partition(".")[0]) == (crash_home.deployment.settings.ledger is not None):
        pytest.skip("the other database does this in another way")
    prepare(crash_home, command, place)
    arguments = arguments_of(command, place)
    assert run(crash_home, *arguments, failpoints=f"{place}=kill") == -signal.SIGKILL, "the place was not passed"
    if command not in ("pin", "retire"):
        check(crash_home.deployment.ledger, crash_home.deployment.ledger.plans.list("tiny")[0].job_version)
    again = run(crash_home, *arguments)
    assert again == 0 or (place == "forget.after_commit" and again == 2)  # what is forgotten is not known any more
    if command in ("cancel", "retire"):
        return
    finish(crash_home)


def finish(home: Home) -> None:
    """Work, check and publish what is left; everything must be there once."""
    registered = home.pinned()
    work(home.deployment, registered)
    check_version(home.deployment, registered)
    publish(home.deployment, registered)
    check(home.deployment.ledger, registered.job_version, objects=home.deployment.objects)
    assert_whole(home, registered)


def assert_whole(home: Home, registered: RegisteredVersion) -> None:
    state = home.status(registered)
    assert (state["results"], state["dead_letters"]) == (RECORDS - 2, 2)
    assert state["published"] == registered.job_version
    ids = [row["record_id"] for row in home.sealed_rows(registered)]
    assert len(ids) == len(set(ids)) == RECORDS - 2


def test_every_named_place_is_killed_at() -> None:
    """A failpoint that nothing dies at proves nothing; `release` is passed by workers that are told to stop."""
    named = {place.partition(".")[0] for place in places()}
    assert named - AT_REST - set(KILLED_IN) == {name for names in LIFE.values() for name in names}
    for name, file in KILLED_IN.items():
        assert f'"{name}.' in (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    assert len(places()) == len(set(places())), "each name stands in one place of the code"


@pytest.mark.parametrize("moment", TRANSACTION)
def test_killed_while_handing_back(crash_home: Home, moment: str) -> None:
    """A drained worker that dies in its last write costs nothing either."""
    prepare(crash_home, "work", "")
    worker = Command(crash_home, "work", "tiny", failpoints=f"put.after_commit=sleep:0.5; release.{moment}=kill")
    registered = crash_home.deployment.ledger.plans.list("tiny")[0]
    wait_for("first results", lambda: crash_home.status(registered)["results"] > 0)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) in (-signal.SIGKILL, 0, 75)  # it may have finished just before
    finish(crash_home)
