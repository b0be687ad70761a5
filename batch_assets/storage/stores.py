"""Opening the object store that an address names, and trying it before it is trusted.

Everything here rests on one promise of the store: of several writers of a key, one wins. Servers
have broken it (SeaweedFS up to 4.16 let all of them win), and nobody notices until results are gone.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from batch_assets.errors import InputError, StoreError
from batch_assets.storage.local_objects import LocalObjects
from batch_assets.storage.objects import Objects
from batch_assets.storage.s3_objects import S3Objects

REMEMBERED = "stores.json"  # in the home: the stores that kept the promise
WRITERS = 6
ROUNDS = 2  # one race can end well by chance


def open_objects(address: str, home: Path) -> Objects:
    """The store at an address: an absolute path, or `s3://bucket/prefix`.

    A store that this home has not used before is tried. Raises InputError for an address that is none,
    StoreError for a store that cannot be reached or lets several writers win.
    """
    if "://" not in address:
        objects: Objects = _local(address)
        name, rounds = objects.address, 1
    else:
        bucket = S3Objects(address, home / "scratch")
        objects, name, rounds = bucket, f"{bucket.address} at {bucket.endpoint or 'AWS'}", ROUNDS
    if name not in _read(home / REMEMBERED):
        prove(objects, rounds=rounds)
        LocalObjects(home).swap(REMEMBERED, lambda data: _with(data, name))
    return objects


def open_to_read(address: str, scratch: Path) -> Objects:
    """The same for somebody who only reads: nothing is tried, made or written.

    Raises InputError for an address that is none, StoreError for a folder that is not there.
    """
    if "://" in address:
        return S3Objects(address, scratch)
    if not Path(address).is_dir():
        raise StoreError(
            f"There is no object store in {address}, so nothing is published there. Set BATCH_ASSETS_HOME (or "
            "BATCH_ASSETS_OBJECTS) to where the jobs run."
        )
    return LocalObjects(Path(address))


def prove(objects: Objects, *, rounds: int = ROUNDS) -> None:
    """Let writers race for new keys and for one that changes.

    Raises StoreError when not exactly one of them wins, or one's change is lost. What the races wrote is
    removed again.
    """
    for _ in range(rounds):
        with _proof_key(objects) as key:
            won = _race(lambda name, key=key: objects.put_if_absent(key, name))
            if sum(won) != 1:
                raise _untrusted(
                    objects, f"{sum(won)} of {WRITERS} writers were told that they had stored a new object"
                )
        with _proof_key(objects) as key:
            _race(lambda name, key=key: objects.swap(key, lambda data: (data or b"") + name) is not None)
            kept = len(objects.get(key))
            if kept != WRITERS:
                raise _untrusted(objects, f"{WRITERS - kept} of {WRITERS} changes of one object were lost")


def _untrusted(objects: Objects, what: str) -> StoreError:
    return StoreError(
        f"The object store {objects.address} cannot be used: {what}. It does not keep conditional writes (If-None-Match, "
        "If-Match), so results could be overwritten. Nothing was stored; use another store, or a newer release of its server."
    )


def _local(address: str) -> LocalObjects:
    try:
        return LocalObjects(Path(address))
    except OSError as error:
        raise InputError(
            f"The folder {address} for objects cannot be made: {error.strerror}. Set BATCH_ASSETS_OBJECTS to another."
        ) from error


@contextmanager
def _proof_key(objects: Objects) -> Iterator[str]:
    key = f".proof/{uuid.uuid4().hex}"
    try:
        yield key
    finally:
        with suppress(StoreError):  # what was found in the race matters more
            objects.remove(key)


def _race(act: Any) -> list[bool]:
    """All writers at once, each with a letter of its own; what `act` answered each of them."""
    start = threading.Barrier(WRITERS)

    def run(writer: int) -> bool:
        start.wait()
        return bool(act(b"%c" % (65 + writer)))

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run, range(WRITERS)))


def _read(remembered: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads(remembered.read_bytes())]
    except (FileNotFoundError, ValueError):
        return []


def _with(data: bytes | None, name: str) -> bytes:
    try:
        known = json.loads(data or b"[]")
    except ValueError:
        known = []
    return json.dumps(sorted({*known, name}), indent=1).encode()
