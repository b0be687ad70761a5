"""Objects in a bucket of S3, or of a server that speaks its protocol.

Credentials, region and endpoint come from the usual `AWS_*` variables. "Already exists" can be the
answer to our own put whose first response was lost, so what stands is read back and compared before
it is believed. A conflict (409) reads the same way: look what stands, and try again if nothing does.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError
from obstore.exceptions import UnauthenticatedError as NotAuthenticatedError
from obstore.store import S3Store

from batch_assets.errors import InputError, StoreError
from batch_assets.storage.objects import (
    PIECE_BYTES,
    Decide,
    Objects,
    StoredObject,
    is_hidden,
    missing,
    sha256_of,
)
from batch_assets.storage.range_files import RangeFile, RangeFiles

ADDRESS = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[\w.=+-]+(?:/[\w.=+-]+)*))?/?", re.A
)
SWAP_ATTEMPTS = 60
PUT_ATTEMPTS = 8
PARTS_MAX = 9_000  # of an upload; S3 allows 10,000
RETRY = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_SECRET_CHARS_MIN = 6  # a shorter one would be replaced in the middle of words
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_WRITER = "writer"


class S3Objects(Objects):
    """An object store under a prefix of a bucket. `folder` is a local one for files on their way."""

    def __init__(self, address: str, folder: Path) -> None:
        found = ADDRESS.fullmatch(address)
        if found is None:
            raise InputError(
                f"{_without_password(address)!r} is not the address of an object store. Set BATCH_ASSETS_OBJECTS to a "
                "folder or to s3://bucket/prefix; credentials and endpoint belong into AWS_* variables."
            )
        self._bucket, self._prefix = found["bucket"], found["prefix"] or ""
        self._folder = folder
        options: dict[str, Any] = {
            "client_options": {"allow_http": _endpoint().startswith("http://"), "connect_timeout": "5s"},
            "retry_config": RETRY,
        }
        with self._explained("it could not be opened"):
            self._store = S3Store(self._bucket, prefix=self._prefix or None, **options)
            self._whole_bucket = S3Store(self._bucket, **options)

    @property
    def address(self) -> str:
        return f"s3://{self._bucket}" + (f"/{self._prefix}" if self._prefix else "")

    @property
    def endpoint(self) -> str:
        return _without_password(_endpoint())

    def uri(self, key: str) -> str:
        return f"{self.address}/{key}"

    def attach(self, connection: Any) -> None:
        """DuckDB's own httpfs would have to be downloaded; obstore reads for it."""
        if not connection.filesystem_is_registered("s3"):
            connection.register_filesystem(RangeFiles(self._whole_bucket, self._explained))

    def open(self, key: str) -> IO[bytes]:
        found = self.stat(key)
        if found is None:
            raise missing(key, self.address)
        with self._explained(f"{key} could not be read", key):
            return cast("IO[bytes]", RangeFile(self._store, key, found.size, self._explained))

    def get(self, key: str) -> bytes:
        with self._explained(f"{key} could not be read", key):
            return bytes(obstore.get(self._store, key).bytes())

    def stat(self, key: str) -> StoredObject | None:
        try:
            with self._explained(f"{key} could not be looked at"):
                return _stored(obstore.head(self._store, key))
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self._explained(f"{prefix or 'it'} could not be listed"):
            for page in obstore.list(self._store, prefix or None):
                yield from (_stored(meta) for meta in page if not is_hidden(meta["path"]))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        for attempt in range(PUT_ATTEMPTS):
            with self._explained(f"{key} could not be stored", is_put=True):
                try:
                    obstore.put(self._store, key, data, mode="create", use_multipart=False)
                except AlreadyExistsError:
                    found = self._current(key)
                    if found is not None:
                        return found[0] == data
                    _pause(attempt)  # a conflict with a writer that then gave up, or with a removal
                else:
                    return True
        raise StoreError(f"{key} is written and removed again and again in {self.address}; find out by whom.")

    def put_file_if_absent(self, key: str, file: Path) -> bool:
        """Uploaded in parts, so that memory does not grow with the file.

        Not every server decides atomically who completes a multipart upload first (SeaweedFS 4.48 lets
        several "create" writers win). So the key is bound to the file's digest first, by a small object
        beside it that is put if absent: whoever may upload then uploads the same bytes. Keys that are
        written this way are not to be written by `put_if_absent` or `swap`.
        """
        digest = sha256_of(file)
        claim = _claim(key)
        is_ours = self.put_if_absent(claim, digest.encode())
        found = self.stat(key)
        if found is not None:
            return is_ours and found.size == file.stat().st_size and self.sha256(key) == digest
        if not is_ours:
            raise StoreError(
                f"{key} is being stored by another writer, with other content, or that writer was interrupted. Wait "
                f"for it; when nothing is running any more, remove {self.uri(claim)} and try again."
            )
        with self._explained(f"{key} could not be stored", is_put=True):
            try:
                piece = max(PIECE_BYTES, file.stat().st_size // PARTS_MAX + 1)
                obstore.put(self._store, key, file, use_multipart=True, chunk_size=piece, max_concurrency=4)
            except (BaseError, FileNotFoundError):
                # The answer to the last request may have been lost after it had its effect: sent again, there is
                # no such upload any more.
                if not self.exists(key) or self.sha256(key) != digest:
                    raise
        return True

    def swap(self, key: str, decide: Decide) -> bytes | None:
        """The condition is the entity tag. Each try carries an id, to tell our own write from another's."""
        for attempt in range(SWAP_ATTEMPTS):
            writer = uuid.uuid4().hex
            with self._explained(f"{key} could not be stored", is_put=True):
                current = self._current(key)
                new = decide(None if current is None else current[0])
                if new is None or (current is not None and new == current[0]):
                    return None if current is None else current[0]
                mode: Any = "create" if current is None else {"e_tag": current[1]}
                try:
                    obstore.put(self._store, key, new, mode=mode, attributes={_WRITER: writer}, use_multipart=False)
                except (AlreadyExistsError, PreconditionError):
                    stands = self._current(key)
                    if stands is None or stands[2] != writer:
                        _pause(attempt)
                        continue
            return new
        raise StoreError(f"{key} in {self.address} changed {SWAP_ATTEMPTS} times while it was written; try again.")

    def remove(self, key: str) -> None:
        with self._explained(f"{key} could not be removed"):
            for name in (key, _claim(key)):
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, name)

    def scratch(self) -> AbstractContextManager[Path]:
        return _scratch(self._folder)

    def _current(self, key: str) -> tuple[bytes, str | None, str | None] | None:
        """(bytes, entity tag, who wrote it); None when the object is missing."""
        try:
            found = obstore.get(self._store, key)
        except FileNotFoundError:
            return None
        return bytes(found.bytes()), found.meta["e_tag"], found.attributes.get(_WRITER)

    @contextlib.contextmanager
    def _explained(self, what: str, key: str | None = None, *, is_put: bool = False) -> Iterator[None]:
        """Errors of the store as ours, without secrets. A missing object is StoreError only if `key` is given."""
        try:
            yield
        except FileNotFoundError as error:
            if is_put:  # it is not the new object that is missing
                raise StoreError(
                    f"{self._place}: {what}: there is no such bucket. Make it, or name another one in BATCH_ASSETS_OBJECTS."
                ) from _redacted(error)
            if key is None:
                raise
            raise missing(key, self.address) from error
        except (PermissionDeniedError, NotAuthenticatedError) as error:
            raise StoreError(
                f"{self._place}: {what}: the store does not accept the credentials or does not allow this. Check "
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy; nothing is lost."
            ) from _redacted(error)
        except (BaseError, ValueError, OSError) as error:
            raise StoreError(f"{self._place}: {what}: {_shown(error)}. {_remedy()} Nothing is lost.") from _redacted(
                error
            )

    @property
    def _place(self) -> str:
        return f"The object store {self.address}" + (f" at {self.endpoint}" if self.endpoint else "")


def _remedy() -> str:
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        return (
            "AWS_ACCESS_KEY_ID is not set, so this machine was asked for a role of its own: set the AWS_* variables of the "
            "store, or run where there is a role."
        )
    return (
        "Check that AWS_ENDPOINT_URL, AWS_REGION and the credentials are those of the store and that it is running, and "
        "try again."
    )


def _claim(key: str) -> str:
    return f".claims/{key}"


def _endpoint() -> str:
    return next((value for name in _ENDPOINTS if (value := os.environ.get(name))), "")


def _without_password(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", address)


def _stored(meta: Any) -> StoredObject:
    written = meta["last_modified"]
    return StoredObject(key=meta["path"], size=meta["size"], modified_ns=round(written.timestamp()) * 1_000_000_000)


def _shown(error: BaseException) -> str:
    """The first sentence of an error, without what the store quotes of the request."""
    text = _without_password(" ".join(str(error).split("<?xml")[0].split("Debug source")[0].split()))
    for name in _SECRETS:
        secret = os.environ.get(name, "")
        if len(secret) >= _SECRET_CHARS_MIN:
            text = text.replace(secret, "…")
    return text[:300].rstrip(" .:")


def _redacted(error: BaseException) -> Exception:
    """What a traceback may show as the cause: the library's own text can quote keys and signatures."""
    return type(error)(_shown(error)) if isinstance(error, Exception) else StoreError(_shown(error))


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(0.01 * 2**attempt, 0.5)))


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".upload-") as made:
        yield Path(made)
