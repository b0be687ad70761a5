"""The JSON pointer `published/<job>.json`: what is published, for readers that have neither ledger nor DuckDB.

It names every file with its size, row count and digest, and carries a digest of itself. Publishers on
several machines write it in any order; the sequence number of the move decides, so that what it shows
never goes back to an older state.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from batch_assets.core.version import canonical_json
from batch_assets.errors import StoreError, VersionError
from batch_assets.failpoints import failpoint
from batch_assets.storage.file_sets import DataFile
from batch_assets.storage.objects import Objects
from batch_assets.storage.publications import Publication
from batch_assets.storage.warehouse import PublishedFiles

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """A pointer object that was read and found to be whole."""

    job: str
    job_version: str
    publication_id: str
    sequence: int  # of the job's moves; a higher one is newer
    published_at: str
    rows: int
    files: tuple[DataFile, ...]


class _Damaged(Exception):
    """Not a pointer object, or not all of it."""


def pointer_key(job: str) -> str:
    return f"published/{job}.json"


def write_pointer_object(objects: Objects, publication: Publication, published: PublishedFiles) -> Pointer:
    """Show this move, unless a newer one is shown; returns what is shown afterwards."""
    body = _body(objects, publication, published)
    data = json.dumps({"sha256": _seal(body), **body}, indent=1).encode()

    def decide(current: bytes | None) -> bytes | None:
        try:
            newer = current is not None and _parse(current).sequence > publication.sequence
        except _Damaged:
            newer = False
        return None if newer else data

    standing = objects.swap(pointer_key(published.job), decide)
    failpoint("pointer.written")
    return _parse(standing or data)


def read_pointer(objects: Objects, job: str) -> Pointer:
    """What is published. Raises VersionError when nothing is, StoreError when the object is damaged."""
    key = pointer_key(job)
    if not objects.exists(key):
        raise VersionError(
            f"{job} has nothing published in {objects.address}: there is no {key}. If a version was published, `batch-assets "
            "rebuild-catalog` writes it anew."
        )
    try:
        pointer = _parse(objects.get(key))
        if pointer.job != job:
            raise _Damaged(f"it is the pointer of {pointer.job}")
    except _Damaged as error:
        raise StoreError(
            f"The pointer object {objects.uri(key)} is damaged: {error}. Nothing is lost; `batch-assets rebuild-catalog` "
            "writes it anew from the ledger."
        ) from error
    return pointer


def shows(objects: Objects, publication: Publication) -> bool:
    """Whether the pointer object stands for this move or a newer one."""
    try:
        pointer = read_pointer(objects, publication.job)
    except (VersionError, StoreError):
        return False
    return pointer.publication_id == publication.publication_id or pointer.sequence > publication.sequence


def _body(objects: Objects, publication: Publication, published: PublishedFiles) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "job": published.job,
        "job_version": published.job_version,
        "publication_id": publication.publication_id,
        "sequence": publication.sequence,
        "published_at": publication.at,
        "rows": sum(file.rows for file in published.files),
        "files": [{**asdict(file), "uri": objects.uri(file.key)} for file in published.files],
    }


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()


def _parse(data: bytes) -> Pointer:
    try:
        body = json.loads(data)
        seal = body.pop("sha256")
        if body.get("format") != FORMAT:
            raise _Damaged(f"its format is {body.get('format')!r}, and this release reads {FORMAT}")
        if _seal(body) != seal:
            raise _Damaged("its digest does not fit its content")
        files = tuple(DataFile(**{name: one[name] for name in DataFile.__dataclass_fields__}) for one in body["files"])
        named = {name: body[name] for name in Pointer.__dataclass_fields__ if name != "files"}
        return Pointer(files=files, **named)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _Damaged("it is not the JSON of a pointer") from error
