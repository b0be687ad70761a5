"""One contract for object stores: a local folder, moto and SeaweedFS."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets_tests.s3 import BUCKET, SECRET, moto_server, seaweedfs_server, use, wire_to
from batch_assets.core.sql_text import parquet_rows
from batch_assets.errors import InputError, StoreError
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.objects import Objects
from batch_assets.storage.s3_objects import S3Objects
from batch_assets.storage.stores import REMEMBERED, open_objects
from batch_assets.storage.warehouse import readable

WRITERS = 4  # SeaweedFS lets those who wait for a key wait for seconds


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    with moto_server() as port:
        yield port


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with seaweedfs_server(tmp_path_factory.mktemp("seaweedfs")) as port:
        yield port


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """An address that no other test uses."""
    return f"s3://{BUCKET}/{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"


@pytest.fixture(params=["local", "moto", "seaweedfs"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> Objects:
    if request.param == "local":
        return LocalObjects(tmp_path / "objects")
    use(monkeypatch, request.getfixturevalue(request.param))
    return S3Objects(prefix, tmp_path / "scratch")


def at_once(act: Callable[[int], object]) -> list[object]:
    """What each of the writers was answered."""
    start = threading.Barrier(WRITERS)

    def run(writer: int) -> object:
        start.wait()
        return act(writer)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run, range(WRITERS)))


def test_the_first_object_under_a_key_stays(objects: Objects) -> None:
    """A second put of other bytes changes nothing and says so; of the same bytes it is a repetition."""
    assert objects.put_if_absent("a/b.json", b"first")
    assert objects.put_if_absent("a/b.json", b"first")
    assert not objects.put_if_absent("a/b.json", b"other")
    assert objects.get("a/b.json") == b"first"
    assert objects.size("a/b.json") == 5
    assert objects.sha256("a/b.json") == hashlib.sha256(b"first").hexdigest()


def test_a_missing_object_is_said_by_name(objects: Objects) -> None:
    """Reading says which object is missing; asking and removing do not mind."""
    assert objects.size("no/such") is None
    assert not objects.exists("no/such")
    objects.remove("no/such")
    for read in (objects.get, objects.sha256, objects.open):
        with pytest.raises(StoreError, match="The object no/such is missing from"):
            read("no/such")


def test_of_racing_writers_one_wins(objects: Objects) -> None:
    """Each writer has other bytes; exactly one is told that it stored them, and those stand."""
    won = at_once(lambda writer: objects.put_if_absent("race", b"writer %d" % writer))
    assert won.count(True) == 1
    assert objects.get("race") == b"writer %d" % won.index(True)


def test_of_racing_files_one_stays(objects: Objects) -> None:
    """The same for files: those that lose are told so, or that another one is being stored."""
    with objects.scratch() as folder:
        for writer in range(WRITERS):
            (folder / str(writer)).write_bytes(b"%d" % writer * 1000)

        def put(writer: int) -> object:
            try:
                return objects.put_file_if_absent("race/file", folder / str(writer))
            except StoreError as error:
                return "being stored by another writer" not in str(error)

        won = at_once(put)
    assert won.count(True) == 1
    assert objects.get("race/file") == b"%d" % won.index(True) * 1000


def test_a_big_file_is_stored_in_pieces_and_stays(objects: Objects) -> None:
    """20 MB in parts: whole, with its digest, and not replaced by another file."""
    with objects.scratch() as folder:
        first, other = folder / "first", folder / "other"
        first.write_bytes(os.urandom(20_000_000))
        other.write_bytes(os.urandom(20_000_000))
        assert objects.put_file_if_absent("big", first)
        assert objects.put_file_if_absent("big", first)
        assert not objects.put_file_if_absent("big", other)
        assert objects.sha256("big") == hashlib.sha256(first.read_bytes()).hexdigest()
    objects.remove("big")
    assert not objects.exists("big")


def test_no_racing_change_is_lost(objects: Objects) -> None:
    """Every writer adds its line to one object; all lines are there."""
    times = 50 if isinstance(objects, LocalObjects) else 1  # a local race is over before the next one begins

    def add(writer: int) -> None:
        for _ in range(times):
            objects.swap("pointer.json", lambda data: (data or b"") + b"%d\n" % writer)

    at_once(add)
    assert sorted(map(int, objects.get("pointer.json").split())) == sorted([*range(WRITERS)] * times)


def test_a_change_that_is_not_wanted_is_not_made(objects: Objects) -> None:
    """`decide` sees what stands, and None leaves it."""
    seen: list[bytes | None] = []
    assert objects.swap("p", lambda data: seen.append(data)) is None
    assert not objects.exists("p")
    assert objects.swap("p", lambda _: b"1") == b"1"
    assert objects.swap("p", lambda data: seen.append(data)) == b"1"
    assert seen == [None, b"1"]


def test_objects_are_listed_with_their_sizes(objects: Objects) -> None:
    """Everything under a folder, and nothing that is only on its way."""
    for key, size in {"x/1": 3, "x/y/2": 4, "xx/3": 5}.items():
        objects.put_if_absent(key, b"." * size)
    with objects.scratch() as folder:
        (folder / "file").write_bytes(b"." * 6)
        objects.put_file_if_absent("x/file", folder / "file")
        assert {one.key: one.size for one in objects.list("x")} == {"x/1": 3, "x/y/2": 4, "x/file": 6}
        assert {one.key for one in objects.list()} == {"x/1", "x/y/2", "xx/3", "x/file"}


def parquet(rows: int = 20_000) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"id": range(rows), "text": [os.urandom(60).hex() for _ in range(rows)]})
    pq.write_table(table, sink, row_group_size=rows // 4)
    return sink.getvalue().to_pybytes()


def test_duckdb_and_pyarrow_read_the_objects(objects: Objects) -> None:
    """Rows, row numbers and file names, through what `attach` and `open` give."""
    objects.put_if_absent("t/part 1.parquet", parquet(1000))
    uri = objects.uri("t/part 1.parquet")
    with duckdb.connect() as connection:
        objects.attach(connection)
        objects.attach(connection)
        rows = parquet_rows([uri], "filename = 'file', file_row_number = true")
        found = connection.execute(f"SELECT id, file_row_number, file FROM {rows} WHERE id = 777").fetchall()
        assert found == [(777, 777, uri)]
    with objects.open("t/part 1.parquet") as file:
        assert pq.read_table(file, columns=["id"])["id"].to_pylist() == list(range(1000))


def test_threads_that_share_a_file_do_not_share_its_position(objects: Objects) -> None:
    """DuckDB seeks and reads from several threads: what another one does in between changes nothing."""
    if isinstance(objects, LocalObjects):
        return  # DuckDB opens local files by itself
    data = bytes(range(256))
    objects.put_if_absent("bytes", data)
    with objects.open("bytes") as file:
        file.seek(10)
        other = threading.Thread(target=lambda: file.seek(200))
        other.start()
        other.join()
        assert file.read(4) == data[10:14]


def test_only_the_wanted_columns_are_fetched(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A narrow column of a wide file costs a small part of its bytes, in DuckDB and in pyarrow."""
    with wire_to(moto) as wire:
        use(monkeypatch, wire.port)
        store, data = S3Objects(prefix, tmp_path), parquet()
        store.put_if_absent("wide.parquet", data)
        with duckdb.connect() as connection:
            store.attach(connection)
            before = wire.sent
            query = f"SELECT sum(id) FROM {parquet_rows([store.uri('wide.parquet')])}"
            assert connection.execute(query).fetchone() == (199_990_000,)
            assert wire.sent - before < len(data) / 4
        before = wire.sent
        with store.open("wide.parquet") as file:
            assert pq.read_table(file, columns=["id"]).num_rows == 20_000
        assert wire.sent - before < len(data) / 4


def test_an_answer_that_was_lost_is_no_conflict(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """The store did it and its answer did not arrive: the second try finds our own object."""
    with wire_to(moto) as wire:
        use(monkeypatch, wire.port)
        store = S3Objects(prefix, tmp_path)
        wire.lose("PUT")
        assert store.put_if_absent("small", b"mine")
        wire.lose("PUT")
        assert store.swap("pointer", lambda data: (data or b"") + b"1") == b"1"
        wire.lose("PUT")
        assert store.swap("pointer", lambda data: (data or b"") + b"2") == b"12"
        (tmp_path / "big").write_bytes(os.urandom(17_000_000))
        wire.lose("PUT", "POST", "POST")
        assert store.put_file_if_absent("big", tmp_path / "big")
        monkeypatch.setattr("batch_assets.storage.s3_objects.RETRY", {"max_retries": 0})
        wire.lose("POST ?uploadId")
        assert S3Objects(prefix, tmp_path).put_file_if_absent("again", tmp_path / "big")
        assert store.sha256("big") == hashlib.sha256((tmp_path / "big").read_bytes()).hexdigest()
        assert len(wire.lost) == 7
        assert store.get("pointer") == b"12"


def test_a_conflict_is_tried_again(moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """409 says that another write was under way: nothing was stored, and nothing was lost."""
    with wire_to(moto) as wire:
        use(monkeypatch, wire.port)
        store = S3Objects(prefix, tmp_path)
        wire.refuse("PUT")
        assert store.put_if_absent("new", b"mine")
        wire.refuse("PUT")
        assert store.swap("pointer", lambda data: (data or b"") + b"1") == b"1"
        wire.refuse("PUT")
        assert store.swap("pointer", lambda data: (data or b"") + b"2") == b"12"
        assert (store.get("new"), store.get("pointer")) == (b"mine", b"12")
        assert not wire.refuses("PUT")


def test_a_file_that_was_announced_and_not_uploaded(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """After a writer that died in between, the same file can be stored; another one is refused with the remedy."""
    use(monkeypatch, moto)
    store = S3Objects(prefix, tmp_path)
    same, other = tmp_path / "same", tmp_path / "other"
    same.write_bytes(b"the file")
    other.write_bytes(b"another file")
    store.put_if_absent(".claims/k", hashlib.sha256(b"the file").hexdigest().encode())
    with pytest.raises(StoreError, match=r"k is being stored by another writer.*remove s3://results/.*/\.claims/k"):
        store.put_file_if_absent("k", other)
    assert not store.exists("k")
    assert store.put_file_if_absent("k", same)
    assert store.get("k") == b"the file"


def test_duckdb_says_in_one_line_what_is_wrong_with_the_store(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """An object that is removed behind a reader's back is named; the traceback of our own code is not shown."""
    use(monkeypatch, moto)
    store = S3Objects(prefix, tmp_path)
    store.put_if_absent("gone.parquet", parquet(10))
    with duckdb.connect() as connection:
        store.attach(connection)
        connection.execute(f"CREATE VIEW rows AS SELECT * FROM {parquet_rows([store.uri('gone.parquet')])}")
        store.remove("gone.parquet")
        with (
            pytest.raises(
                StoreError,
                match=r"^The rows cannot be read: The object .*gone\.parquet is missing from s3://\S*; restore it from a \w+\.$",
            ),
            readable("The rows"),
        ):
            connection.execute("SELECT sum(id) FROM rows").fetchall()


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("if-none-match", "6 of 6 writers were told that they had stored a new object"),
        ("if-match", "changes of one object were lost"),
    ],
)
def test_a_store_that_lets_several_writers_win_is_refused(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, header: str, complaint: str
) -> None:
    """A server that does not know conditional writes is found out before anything is stored in it."""
    with wire_to(moto, ignores=(header,)) as wire:
        use(monkeypatch, wire.port)
        with pytest.raises(StoreError, match=complaint):
            open_objects(prefix, tmp_path)
    assert not (tmp_path / REMEMBERED).exists()


def test_a_store_is_tried_once_and_left_clean(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home remembers a store that kept its promise; nothing of the trial stays."""
    monkeypatch.setattr("batch_assets.storage.stores.ROUNDS", 1)
    monkeypatch.setattr("batch_assets.storage.stores.WRITERS", WRITERS)
    opened = open_objects(objects.address, tmp_path)
    assert list(opened.list()) == []
    remembered = (tmp_path / REMEMBERED).read_text()
    assert objects.address in remembered
    assert SECRET not in remembered

    def tried_again(*_: object, **__: object) -> None:
        raise AssertionError("a store that the home knows was tried again")

    monkeypatch.setattr("batch_assets.storage.stores.prove", tried_again)
    open_objects(objects.address, tmp_path)


def test_addresses_that_are_none_are_refused(tmp_path: Path) -> None:
    """One sentence that says what to write; passwords in it are not repeated."""
    for address in ("s3://", "s3://UPPER/x", "gs://bucket/x", "s3://tester:hidden@bucket/x", "s3://b/x?y=1"):
        with pytest.raises(InputError, match="is not the address of an object store") as refused:
            open_objects(address, tmp_path)
        assert "hidden" not in str(refused.value)


def test_a_store_that_does_not_answer_or_refuses_is_named(
    seaweedfs: int, moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody there, wrong secret, no bucket: each says which store, and shows no secret."""
    monkeypatch.setattr("batch_assets.storage.s3_objects.RETRY", {"max_retries": 0})
    wrong = "wrong-secret-that-nobody-sees"
    for port, bucket, complaint in (
        (9, BUCKET, "at http://127.0.0.1:9: .*could not be stored"),
        (seaweedfs, BUCKET, "does not accept the credentials"),
        (moto, "no-such-bucket", "no-such-bucket/x .*there is no such bucket"),
    ):
        use(monkeypatch, port, secret=wrong)
        with pytest.raises(StoreError, match=complaint) as refused:
            open_objects(f"s3://{bucket}/x", tmp_path)
        assert wrong not in str(refused.value) + repr(refused.value.__cause__)
