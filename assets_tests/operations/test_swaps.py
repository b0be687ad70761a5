"""Readers in other processes see the old whole or the new whole, whatever happens to the publishers (invariant I3)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import duckdb
import pytest

import batch_assets
from assets_tests.factories import record_id
from assets_tests.homes import Home
from assets_tests.publishing import published
from assets_tests.workers import Command
from batch_assets.operations.catalog import mend_catalog
from batch_assets.operations.publish import rollback
from batch_assets.settings import Settings
from batch_assets.storage.pointer_object import read_pointer

SWAPS = 200
PAUSE_S = 0.02  # between two reads: the publisher needs a processor, too
RECORDS = 6
SMALL = {"records": RECORDS, "shard_size": 3}
# Every step of a move that a publisher can die after, and whether the ledger has the move then.
STEPS = {
    "publish.before_commit": False,
    "publish.after_commit": True,
    "catalog.built": True,
    "catalog.replaced": True,
    "pointer.written": True,
}
_forks = multiprocessing.get_context("forkserver")


def _read_catalog(settings: Settings) -> list[tuple[str, str]]:
    with duckdb.connect(str(settings.warehouse), read_only=True, config={"threads": 1}) as connection:
        return connection.execute("SELECT _job_version, record_id FROM published.tiny ORDER BY record_id").fetchall()


def _read_pointer(settings: Settings) -> list[tuple[str, str]]:
    table = batch_assets.read_published("tiny", settings=settings).to_table(["_job_version", "record_id"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _reader(how: str, home: str, results: Connection) -> None:
    """Reads until it is told to stop; then says how often, which versions it saw, and what was wrong."""
    settings, read = Settings(home=Path(home)), {"catalog": _read_catalog, "pointer": _read_pointer}[how]
    whole, reads, seen, faults = [record_id(number) for number in range(RECORDS)], 0, set[str](), list[str]()
    results.send("ready")
    while not results.poll(PAUSE_S):
        try:
            rows = read(settings)
        except Exception as error:  # any error is a fault: it is what the test is about
            faults.append(f"{type(error).__name__}: {error}")
            continue
        reads += 1
        seen.update(version for version, _ in rows)
        if len({version for version, _ in rows}) != 1 or [one for _, one in rows] != whole:
            faults.append(f"a mix: {rows}")
    results.send((reads, seen, faults))


@contextmanager
def readers(home: Home) -> Iterator[dict[str, tuple[int, set[str], list[str]]]]:
    """One process per way of reading; what they found is there when the block has ended."""
    found: dict[str, tuple[int, set[str], list[str]]] = {}
    running = {}
    for how in ("catalog", "pointer"):
        ours, theirs = _forks.Pipe()
        process = _forks.Process(target=_reader, args=(how, str(home.deployment.settings.home), theirs))
        process.start()
        running[how] = (process, ours)
    for _, ours in running.values():
        assert ours.recv() == "ready"
    try:
        yield found
    finally:
        for how, (process, ours) in running.items():
            ours.send("stop")
            found[how] = ours.recv()
            process.join(60)


def sees_only(found: dict[str, tuple[int, set[str], list[str]]], versions: set[str]) -> None:
    for how, (reads, seen, faults) in found.items():
        assert faults == [], how
        assert reads > 0
        assert seen <= versions


def test_readers_never_see_a_half_or_an_error_while_versions_change(home: Home) -> None:
    """Hundreds of swaps, read through the catalog and through the JSON pointer: each read is one whole version."""
    versions = [published(home, word, **SMALL).job_version for word in ("Sort", "Put")]
    with readers(home) as found:
        for number in range(SWAPS):
            rollback(home.deployment, "tiny", versions[number % 2])
    sees_only(found, set(versions))
    assert all(seen == set(versions) for _, seen, _ in found.values())
    assert len(home.deployment.ledger.publications.history("tiny")) == SWAPS + 2


def test_ten_versions_are_published_and_rolled_back_under_readers(home: Home) -> None:
    """Up to the tenth and back to the first."""
    first = published(home, "Number 0:", **SMALL).job_version
    versions = [first]
    with readers(home) as found:
        versions += [published(home, f"Number {number}:", **SMALL).job_version for number in range(1, 10)]
        went = [rollback(home.deployment, "tiny").job_version for _ in range(9)]
    assert went == versions[-2::-1]
    assert len(set(versions)) == 10
    sees_only(found, set(versions))


def test_a_publisher_that_is_killed_at_any_step_is_mended_by_the_next_command(home: Home) -> None:
    """Readers meanwhile see one of the two versions, whole; afterwards all that they can open is the ledger's."""
    versions = [published(home, word, **SMALL).job_version for word in ("Sort", "Put")]
    shown, ledger = versions[1], home.deployment.ledger.publications
    with readers(home) as found:
        for step, moved in STEPS.items():
            other = next(one for one in versions if one != shown)
            killed = Command(home, "rollback", "tiny", "--to", other, failpoints=f"{step}=kill")
            assert killed.wait(60) == -9, step
            shown = other if moved else shown
            assert ledger.current("tiny") == shown, step
            assert Command(home, "status", "tiny").wait(60) == 0
            assert {version for version, _ in _read_catalog(home.deployment.settings)} == {shown}, step
            assert read_pointer(home.deployment.objects, "tiny").job_version == shown, step
            assert mend_catalog(home.deployment) is False, step
    rollback(home.deployment, "tiny", next(one for one in versions if one != shown))
    assert not list(home.deployment.settings.root.glob(".warehouse-*"))
    sees_only(found, set(versions))


@pytest.mark.parametrize("step", ["catalog.built", "catalog.replaced"])
def test_a_retry_after_a_kill_moves_nothing_and_shows_what_was_moved(home: Home, step: str) -> None:
    """The publisher died after the ledger's commit; its scheduler starts it again with the same id."""
    first, second = (published(home, word, **SMALL).job_version for word in ("Sort", "Put"))
    arguments = ("rollback", "tiny", "--to", first, "--publish-id", "try-1")
    assert Command(home, *arguments, failpoints=f"{step}=kill").wait(60) == -9
    assert Command(home, *arguments).wait(60) == 0
    assert len(home.deployment.ledger.publications.history("tiny")) == 3
    assert {version for version, _ in _read_catalog(home.deployment.settings)} == {first}
    assert second != first
