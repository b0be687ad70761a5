"""Retention: what goes, what never does, and what is left when a sweep is cut short."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from assets_tests.factories import PROMPT, make_job
from assets_tests.homes import Home
from assets_tests.losing import losing
from assets_tests.operations.test_changes import changes_file, edited
from assets_tests.operations.test_publish import seen_by_readers
from assets_tests.publishing import judged, published, worked
from batch_assets.core.retention import Move, reasons_to_keep
from batch_assets.errors import BatchAssetsError, GateError, InputError, StoreError
from batch_assets.operations.catalog import open_published
from batch_assets.operations.check import check
from batch_assets.operations.export import export
from batch_assets.operations.history import history
from batch_assets.operations.pin_changes import pin_changes
from batch_assets.operations.plan import plan
from batch_assets.operations.publish import publish, rollback
from batch_assets.operations.sweep import sweep
from batch_assets.operations.work import work
from batch_assets.storage.objects import Objects
from batch_assets.storage.plans import RegisteredVersion

WORDS = ("Sort", "Put", "Lay", "File", "Place")


def files(home: Home, version: RegisteredVersion) -> set[str]:
    return {one.key for one in home.deployment.objects.list(f"results/tiny/{version.job_version}/")}


def put_old(home: Home, key: str, *, hours: float = 48) -> str:
    """An object that was last written that long ago."""
    home.deployment.objects.put_if_absent(key, b"old")
    path = Path(home.deployment.objects.uri(key))
    at = path.stat().st_mtime - hours * 3600
    os.utime(path, (at, at))
    return key


def test_the_last_published_versions_stay_and_older_ones_go(home: Home) -> None:
    """First as a dry run, which changes nothing; a swept version is refused to readers with the reason."""
    versions = [published(home, word) for word in WORDS]
    before = [files(home, version) for version in versions]
    planned = sweep(home.deployment, "tiny", keep=2, grace_h=0, dry_run=True)
    assert [one.job_version for one in planned.versions] == [one.job_version for one in versions[:3]]
    assert planned.bytes == sum(
        home.deployment.objects.size(key) or 0 for keys in before[:3] for key in keys
    )  # fmt: skip
    assert [files(home, version) for version in versions] == before
    assert home.deployment.ledger.retention.swept() == set()
    done = sweep(home.deployment, "tiny", keep=2, grace_h=0)
    assert (done.versions, done.bytes, done.orphans) == (planned.versions, planned.bytes, ())
    assert [len(files(home, version)) for version in versions] == [0, 0, 0, 4, 4]
    assert done.kept == {
        versions[3].job_version: "one of the last 2 published", versions[4].job_version: "readers see it"
    }  # fmt: skip
    assert sweep(home.deployment, "tiny", keep=2, grace_h=0).bytes == 0
    assert rollback(home.deployment, "tiny").job_version == versions[3].job_version
    for act in (
        lambda: rollback(home.deployment, "tiny"),
        lambda: rollback(home.deployment, "tiny", versions[0].job_version),
        lambda: publish(home.deployment, versions[0]),
        lambda: check(home.deployment, versions[0]),
        lambda: export(home.deployment, versions[0].job_version, "csv", home.jobs / "out.csv"),
    ):
        with pytest.raises(GateError, match=r"were removed by .* \(`batch-assets sweep`\)"):
            act()
    assert seen_by_readers(home) == versions[3].job_version
    assert [move["swept"] for move in history(home.deployment, "tiny")] == [False, False, False, True, True, True]


def test_readers_have_the_grace_time_to_finish(home: Home) -> None:
    """A version that was replaced a moment ago may be open in a dashboard; by default that is a day."""
    first = published(home, "Sort")
    published(home, "Put")
    done = sweep(home.deployment, "tiny", keep=1)
    assert done.kept[first.job_version] == "readers could open it until less than 24 h ago"
    assert len(files(home, first)) == 4
    for keep, grace in ((0, 1.0), (1, -1.0), (1, float("nan")), (1, float("inf"))):
        with pytest.raises(InputError, match="keeps at least 1"):
            sweep(home.deployment, "tiny", keep=keep, grace_h=grace)


def test_what_a_version_names_or_may_come_to_name_is_no_orphan(home: Home) -> None:
    """Old files of versions that run, wait for publication, or were not planned yet stay; others go."""
    unpublished = worked(home, "Put")
    published(home, "Sort")
    make_job(home.jobs, prompt=PROMPT.replace("Sort", "Lay"))
    running = home.pinned()
    root = Path(home.deployment.settings.objects_address)
    for path in (root / "results").rglob("*.parquet"):
        os.utime(path, (1, 1))
    kept = [
        put_old(home, f"results/tiny/{running.job_version}/shard-000001.parquet"),
        put_old(home, "results/tiny/stray"),
    ]
    young = put_old(home, "results/tiny/v1_forgotten0000/shard-000000.parquet", hours=1)
    gone = [
        put_old(home, "results/tiny/v1_forgotten0000/shard-000001.parquet"),
        put_old(home, f"results/tiny/{unpublished.job_version}/shard-000099.r1.parquet"),
        put_old(home, "merged/tiny/v1_forgotten0000/0a/whole-00000.parquet"),
        put_old(home, "snapshots/0123456789abcdef.parquet"),
    ]
    done = sweep(home.deployment, "tiny")
    assert sorted(one.key for one in done.orphans) == sorted(gone)
    assert len(files(home, unpublished)) == 4
    left = {one.key for one in home.deployment.objects.list()}
    assert {*kept, young} <= left
    assert not left & set(gone)


def test_snapshot_files_stay_while_a_version_of_any_job_names_them(home: Home) -> None:
    """A converted snapshot is shared; and while a version file cannot be read, none is touched."""
    job = make_job(home.jobs)
    (job / "records.csv").write_text("record_id,subject,body,record_class,acl\nR-1,a,b,public,x\n")
    make_job(home.jobs, name="other", snapshot={"path": "../tiny/records.csv"})
    version = home.pinned("other")
    published(home, "Sort")
    (named,) = [one.key for one in home.deployment.objects.list("snapshots/")]
    os.utime(home.deployment.objects.uri(named), (1, 1))
    orphan = put_old(home, "snapshots/00.parquet")
    file = Path(home.deployment.objects.uri(f"versions/other/{version.job_version}.json"))
    whole = file.read_bytes()
    file.write_bytes(b"{}")
    done = sweep(home.deployment, "tiny")
    assert done.orphans == ()
    assert "no snapshot file was looked at" in done.notes[0]
    file.write_bytes(whole)
    assert [one.key for one in sweep(home.deployment, "tiny").orphans] == [orphan]
    assert home.deployment.objects.exists(named)


@pytest.mark.parametrize(
    "place",
    [
        "sweep.before_commit",
        "sweep.after_commit",
        "remove_files.before_commit",
        "remove_snapshots.before_commit",
        "object",
    ],
)
def test_a_sweep_that_is_cut_short_is_finished_by_the_next(
    home: Home, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Wherever it ended: a version has all of its files, or is marked and refused; the next sweep ends alike."""
    first, second = published(home, "Sort"), published(home, "Put")
    orphan = put_old(home, "results/tiny/v1_forgotten0000/shard-000001.parquet")
    converted = put_old(home, "snapshots/forgotten.parquet")
    if place == "object":
        remove, calls = type(home.deployment.objects).remove, list[str]()

        def dies(objects: Objects, key: str) -> None:
            calls.append(key)
            if len(calls) == 3:
                raise StoreError("killed")
            remove(objects, key)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(type(home.deployment.objects), "remove", dies)
            with pytest.raises(StoreError, match="killed"):
                sweep(home.deployment, "tiny", keep=1, grace_h=0)
    else:
        with losing(place), pytest.raises(StoreError):
            sweep(home.deployment, "tiny", keep=1, grace_h=0)
    marked = first.job_version in home.deployment.ledger.retention.swept()
    assert marked or len(files(home, first)) == 4
    sweep(home.deployment, "tiny", keep=1, grace_h=0)
    assert (files(home, first), len(files(home, second))) == (set(), 4)
    assert not home.deployment.objects.exists(orphan)
    assert not home.deployment.objects.exists(converted)
    assert seen_by_readers(home) == second.job_version


def race(*acts: Callable[[], object]) -> None:
    """All at once; who is refused has lost."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> None:
        start.wait(30)
        with contextlib.suppress(BatchAssetsError):
            act()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_a_version_is_swept_or_rolled_back_to_never_both(home: Home) -> None:
    """Three races: readers always find all files of what they are shown."""
    published(home, "Sort")
    published(home, "Put")
    for number in range(3):
        published(home, f"Number {number} and")
        race(
            lambda: sweep(home.deployment, "tiny", keep=1, grace_h=0),
            lambda: rollback(home.deployment, "tiny"),
        )
        shown = home.deployment.ledger.publications.current("tiny")
        assert shown is not None
        assert shown not in home.deployment.ledger.retention.swept()
        assert seen_by_readers(home) == shown


def test_what_is_kept_is_decided_from_the_history_alone() -> None:
    """By letters: published A to E, back to C; times in hours."""
    moves = [
        Move(kind="publish", from_version=before, to_version=to, at=3600.0 * hour)
        for hour, (before, to) in enumerate([(None, "A"), ("A", "B"), ("B", "C"), ("C", "D"), ("D", "E")])
    ]
    back = Move(kind="rollback", from_version="E", to_version="C", at=3600.0 * 5)

    def kept(rest: list[Move], **rule: float | int | set[str]) -> str:
        standard = {"keep": 2, "grace_s": 0.0, "now": 3600.0 * 6}
        found = reasons_to_keep(rest, **{**standard, **rule})  # type: ignore[arg-type]
        return "".join(version for version, reason in found.items() if reason is not None)

    assert kept(moves) == "DE"
    assert kept([*moves, back]) == "BCE"  # B to step back to, E to go forward to again
    assert kept(moves, keep=9) == "ABCDE"
    assert kept(moves, keep=1) == "E"
    assert kept(moves, keep=1, grace_s=3600.0 * 2.5) == "DE"  # D was left two hours ago
    assert kept(moves, keep=1, bases={"B"}) == "BE"


def test_merged_files_of_nights_go_with_their_versions_and_a_base_stays_while_changes_need_it(home: Home) -> None:
    """A night needs no file of the one before once it is merged; one that is not published yet does."""
    base = published(home, "Sort", gate={"dead_letters": {"rate_max": 1.0}})
    nights = []
    for number in (3, 4):
        changed = changes_file(home, [edited(number, "another text")], f"night-{number}.parquet")
        pinned = pin_changes(home.deployment, home.deployment.job("tiny"), changed)
        plan(home.deployment, home.deployment.ledger.plans.get(pinned.job_version))
        nights.append(home.deployment.ledger.plans.get(pinned.job_version))
        work(home.deployment, nights[-1])
        judged(home, nights[-1])
        if number == 3:
            publish(home.deployment, nights[0])
    whole = published(home, "Put")
    abandoned = put_old(home, f"merged/tiny/{nights[0].job_version}/cutshort0000/whole-00000.parquet")
    may_come = put_old(home, f"merged/tiny/{nights[1].job_version}/underway0000/whole-00000.parquet")
    done = sweep(home.deployment, "tiny", keep=1, grace_h=0)
    assert [one.job_version for one in done.versions] == [base.job_version]
    assert [one.key for one in done.orphans] == [abandoned]
    assert done.kept[nights[0].job_version] == "the base of changes that are not published yet"
    rollback(home.deployment, "tiny", nights[0].job_version)
    publish(home.deployment, judged(home, nights[1]))  # its base is there to merge with
    objects = home.deployment.objects
    merged = {one.key for one in objects.list(f"merged/tiny/{nights[1].job_version}/")} - {may_come}
    done = sweep(home.deployment, "tiny", keep=1, grace_h=0)
    assert {one.job_version for one in done.versions} == {whole.job_version, nights[0].job_version}
    assert [one.key for one in done.orphans] == [may_come]  # published, it is merged no more
    assert {one.key for one in objects.list("merged/")} == merged
    with open_published(home.deployment) as connection:
        found = connection.execute("SELECT count(*), count(DISTINCT record_id) FROM published.tiny").fetchone()
    assert found == (20, 20)
