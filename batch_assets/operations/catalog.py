"""What readers open, derived from the ledger's pointers: made anew, and mended when it is missing, old or damaged.

A publisher may be killed between the ledger's commit and the catalog, or the file may be lost. Whoever
opens the catalog through here finds out and rebuilds it; the files that it names are immutable, so
whoever has the old one open goes on reading the old whole.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb

from batch_assets.errors import BatchAssetsError, StoreError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.whole import published_files
from batch_assets.storage.pointer_object import shows, write_pointer_object
from batch_assets.storage.publications import Publication
from batch_assets.storage.warehouse import Catalog, PublishedFiles, open_warehouse, read_stamp, readable, stamp

_CANNOT_MEND = (BatchAssetsError, OSError, duckdb.Error)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What a new catalog shows."""

    published: Mapping[str, str]  # job -> version
    left_out: Mapping[str, str]  # job -> what is wrong with its files


def refresh_catalog(deployment: Deployment) -> Rebuilt:
    """Derive the warehouse catalog and the JSON pointers from the ledger's pointers.

    Serialized by a file lock: of two publishers the later one must not put an older state in place.
    """
    left_out: dict[str, str] = {}
    with catalog_lock(deployment), Catalog(deployment.settings.warehouse, deployment.objects) as catalog:
        standing = deployment.ledger.publications.pointers()
        for publication in standing.values():
            problem = add_if_readable(deployment, catalog, publication)
            if problem is not None:
                left_out[publication.job] = problem
        catalog.put_in_place(deployment.ledger.publications.history())
    shown = {job: one.to_version for job, one in standing.items() if job not in left_out}
    return Rebuilt(published=shown, left_out=left_out)


def mend_catalog(deployment: Deployment) -> bool:
    """Rebuild the catalog and the JSON pointers unless they show what the ledger says; True when it was done."""
    standing = deployment.ledger.publications.pointers()
    warehouse = deployment.settings.warehouse
    if not standing and not warehouse.exists():
        return False
    expected = stamp(deployment.objects, {job: one.publication_id for job, one in standing.items()})
    if read_stamp(warehouse) == expected and all(shows(deployment.objects, one) for one in standing.values()):
        return False
    refresh_catalog(deployment)
    return True


def mend_in_passing(deployment: Deployment) -> None:
    """For commands that only look: what readers open is mended if it can be, and the command goes on in any case."""
    try:
        mend_catalog(deployment)
    except _CANNOT_MEND as error:
        _log.warning("What readers open could not be looked after: %s", error)


@contextmanager
def open_published(deployment: Deployment) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection to the catalog as it should be. Raises StoreError when nothing can be opened.

    Reading goes on while the ledger is away, or the home cannot be written: with the catalog that is there.
    """
    warehouse = deployment.settings.warehouse
    try:
        mend_catalog(deployment)
    except _CANNOT_MEND as error:
        if read_stamp(warehouse) is None:
            raise
        _log.warning("%s may be old: %s", warehouse, error)
    if not warehouse.is_file():
        raise StoreError(f"Nothing is published in {deployment.settings.root} yet, so there is no {warehouse.name}.")
    with readable(str(warehouse)):
        connection = open_warehouse(warehouse)
    try:
        deployment.objects.attach(connection)
        yield connection
    finally:
        connection.close()


def files_of(deployment: Deployment, publication: Publication) -> PublishedFiles:
    """The files that readers see after this move."""
    return PublishedFiles(
        job=publication.job,
        job_version=publication.to_version,
        publication_id=publication.publication_id,
        files=list(published_files(deployment, publication.to_version)),
    )


def add_if_readable(deployment: Deployment, catalog: Catalog, publication: Publication) -> str | None:
    """One job whose files are damaged must not keep the others from being published; returns what is wrong."""
    try:
        published = files_of(deployment, publication)
        catalog.add(published)
    except BatchAssetsError as error:
        _log.warning("published.%s is left out of the catalog: %s", publication.job, error)
        return str(error)
    write_pointer_object(deployment.objects, publication, published)
    return None


@contextmanager
def catalog_lock(deployment: Deployment) -> Iterator[None]:
    """One publisher of this home at a time."""
    with (deployment.settings.root / "warehouse.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
