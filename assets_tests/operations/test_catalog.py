"""The catalog and the JSON pointer follow the ledger: lost, old or damaged, they are made anew by who opens them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from assets_tests.homes import Home
from assets_tests.publishing import published
from batch_assets.errors import StoreError
from batch_assets.operations.catalog import files_of, mend_catalog, open_published, refresh_catalog
from batch_assets.operations.publish import rollback
from batch_assets.storage.pointer_object import read_pointer, write_pointer_object


def seen(home: Home) -> set[str]:
    with open_published(home.deployment) as connection:
        return {
            str(row[0]) for row in connection.execute("SELECT DISTINCT _job_version FROM published.tiny").fetchall()
        }


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _another_release(path: Path) -> None:
    """The number of DuckDB's storage format stands behind the checksum and the magic bytes."""
    data = bytearray(path.read_bytes())
    data[12] = 250
    path.write_bytes(data)


def _flip_in_the_middle(path: Path) -> None:
    """In every block: whatever is read fails its checksum."""
    data = bytearray(path.read_bytes())
    for place in range(12288 + 4096, len(data), 4096):
        data[place] ^= 0xFF
    path.write_bytes(data)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "somebody's file").touch()


def _without_stamp(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP SCHEMA batch_assets CASCADE")


def _old_wal(path: Path) -> None:
    """Somebody opened it for writing and was killed."""
    path.with_name(path.name + ".wal").write_bytes(b"left behind")
    path.write_bytes(b"and the file is gone, too")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"garbage" * 5000),
    "truncated": _truncate,
    "another release": _another_release,
    "flipped": _flip_in_the_middle,
    "folder": _folder,
    "without stamp": _without_stamp,
    "old wal": _old_wal,
}


def test_whoever_opens_the_catalog_mends_it(home: Home) -> None:
    """Whatever happened to the file: the next one to open it through us sees what is published."""
    version = published(home, "Sort")
    warehouse = home.deployment.settings.warehouse
    assert mend_catalog(home.deployment) is False
    for damage in DAMAGES.values():
        damage(warehouse)
        assert seen(home) == {version.job_version}
        assert mend_catalog(home.deployment) is False
    (aside,) = warehouse.parent.glob("warehouse.duckdb.set-aside-*")
    assert [path.name for path in aside.iterdir()] == ["somebody's file"]


def test_an_old_catalog_is_noticed(home: Home) -> None:
    """One that is whole, and shows what was published before."""
    first, second = published(home, "Sort"), published(home, "Put")
    old = home.deployment.settings.warehouse.read_bytes()
    rollback(home.deployment, "tiny")
    home.deployment.settings.warehouse.write_bytes(old)
    assert first.job_version != second.job_version
    assert seen(home) == {first.job_version}


def test_the_pointer_object_is_mended_too_and_never_goes_back(home: Home) -> None:
    """Damaged or old it is written anew; a newer one, of another machine's publisher, is left alone."""
    version, objects = published(home, "Sort"), home.deployment.objects
    for data in (
        b"",
        b"{}",
        b'{"format": 1}',
        objects.get("published/tiny.json").replace(b'"rows": 20', b'"rows": 21'),
    ):
        objects.swap("published/tiny.json", lambda _, data=data: data)
        with pytest.raises(StoreError, match="is damaged"):
            read_pointer(objects, "tiny")
        assert mend_catalog(home.deployment) is True
        assert read_pointer(objects, "tiny").job_version == version.job_version
    old = objects.get("published/tiny.json")
    second = published(home, "Put")
    newest = objects.get("published/tiny.json")
    assert json.loads(newest)["sequence"] == 2
    objects.swap("published/tiny.json", lambda _: old)
    assert mend_catalog(home.deployment) is True
    assert objects.get("published/tiny.json") == newest
    publication = home.deployment.ledger.publications.history("tiny")[-1]
    late = write_pointer_object(objects, publication, files_of(home.deployment, publication))
    assert late.job_version == second.job_version
    assert objects.get("published/tiny.json") == newest


def test_an_open_connection_neither_blocks_publishing_nor_breaks(home: Home) -> None:
    """A dashboard goes on reading the version that it opened, while others see the new one."""
    first = published(home, "Sort")
    with open_published(home.deployment) as dashboard:
        second = published(home, "Put")
        assert seen(home) == {second.job_version}
        count = "SELECT count(*), min(_job_version), max(_job_version) FROM published.tiny"
        assert dashboard.execute(count).fetchone() == (20, first.job_version, first.job_version)
        refresh_catalog(home.deployment)
        assert dashboard.execute(count).fetchone() == (20, first.job_version, first.job_version)
        with pytest.raises(duckdb.Error, match="read-only"):
            dashboard.execute("CREATE TABLE published.mine AS SELECT 1")


def test_reading_goes_on_while_the_ledger_is_away(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog that is there is opened; without one, the ledger's error is the answer."""
    version = published(home, "Sort")

    def away(*_: object) -> None:
        raise StoreError("the ledger is away")

    monkeypatch.setattr(type(home.deployment.ledger.publications), "pointers", away)
    assert seen(home) == {version.job_version}
    home.deployment.settings.warehouse.unlink()
    with pytest.raises(StoreError, match="the ledger is away"):
        seen(home)


def test_nothing_published_is_said(home: Home) -> None:
    """No catalog, no file made in passing."""
    with pytest.raises(StoreError, match="Nothing is published"), open_published(home.deployment):
        pass
    assert not home.deployment.settings.warehouse.exists()
    assert refresh_catalog(home.deployment).published == {}
