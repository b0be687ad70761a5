"""Pinning what has changed since the published version: an incremental version under the same recipe.

It is based on what readers see now, and can be published only while they still see that. Its records
join or replace those of the base; the ids that it removes go. A changed recipe needs a backfill: rows
that answer two questions must not stand in one table (invariant I2).
"""

from __future__ import annotations

import glob
import hashlib
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from batch_assets.core.sql_text import parquet_rows, quote_name
from batch_assets.core.version import ChangesPin, FilePin, JobVersion, SnapshotPin
from batch_assets.errors import SnapshotError, SpecError, VersionError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.jobs import Job
from batch_assets.operations.pin import Pinned, freeze, make_known
from batch_assets.operations.whole import published_files
from batch_assets.operations.work import output_model
from batch_assets.storage.objects import missing
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.removed_ids import pin_removed
from batch_assets.storage.scan import MEMORY_LIMIT
from batch_assets.storage.sealed import sealed_schema
from batch_assets.storage.snapshot_columns import plain_type
from batch_assets.storage.snapshots import SnapshotReader, pin_snapshot
from batch_assets.storage.warehouse import readable


def pin_changes(
    deployment: Deployment,
    job: Job,
    changes: Path | None,
    *,
    removed: Path | None = None,
    batch: str | None = None,
) -> Pinned:
    """Pin the records of `changes` (any form of snapshot) and the ids listed in `removed`; either may be absent.

    Raises VersionError when nothing is published yet, SpecError when the recipe has changed since, and
    SnapshotError when the records or ids do not fit what is published. Nothing is kept then.
    """
    base = _base(deployment, job)
    published = _published_schema(deployment, base)
    gone = None
    if removed is not None:
        id_type = _id_type(job, published)
        gone = pin_removed(removed, job.spec.snapshot.record_id, id_type, deployment.objects)
    if changes is not None and not (changes.exists() or glob.has_magic(str(changes))):
        raise SnapshotError(f"There is no file or folder {changes} with the changed records. Nothing was pinned.")
    if changes is None and gone is None:
        raise SnapshotError(f"There is nothing to pin: no changed record and no removed id of {job.name} was given.")
    snapshot = (
        _no_records(deployment, job, published)
        if changes is None
        else pin_snapshot(
            job.spec.snapshot.model_copy(update={"path": str(changes), "rows": None, "format": "auto"}),
            job.folder,
            deployment.objects,
        )
    )
    pinned_gone, digest = gone or (None, None)
    version = freeze(
        deployment,
        job,
        snapshot,
        ChangesPin(base=base.job_version, removed=pinned_gone, removed_digest=digest, batch=batch),
    )
    _refuse_other_recipe(deployment, job, version, base)
    _refuse_other_types(deployment, version, published, base)
    pinned = make_known(deployment, job, version)
    return replace(pinned, notes=(*pinned.notes, *_unknown_removals(deployment, version)))


def _unknown_removals(deployment: Deployment, version: JobVersion) -> tuple[str, ...]:
    """A list of ids in another spelling removes nothing, and would look like a success."""
    changes = version.changes
    if changes is None or changes.removed is None:
        return ()
    record_id = quote_name(version.snapshot.record_id)
    uris = [deployment.objects.uri(file.key) for file in published_files(deployment, changes.base)]
    with duckdb.connect() as connection, readable(f"The files of {changes.base}"):
        deployment.objects.attach(connection)
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        listed = f"SELECT {record_id} FROM {parquet_rows([deployment.objects.uri(changes.removed.key)])}"
        if uris:
            listed += f" ANTI JOIN (SELECT {record_id} FROM {parquet_rows(uris)}) AS base USING ({record_id})"
        ((unknown,),) = connection.execute(f"SELECT count(*) FROM ({listed})").fetchall()
    if not unknown:
        return ()
    return (f"{unknown:,} of the {changes.removed.rows:,} ids to remove have no row in {changes.base}",)


def _base(deployment: Deployment, job: Job) -> RegisteredVersion:
    current = deployment.ledger.publications.current(job.name)
    if current is None:
        raise VersionError(
            f"{job.name} has nothing published that changes could be added to. Publish a whole version first: "
            f"`batch-assets pin {job.name}`, then run, check and publish it."
        )
    base = deployment.ledger.plans.get(current)
    if base.retired and deployment.ledger.progress.of(current).dead_letters:
        raise VersionError(
            f"{current} is published but was retired, and the list of its dead letters is gone, so changes cannot be "
            f"added to it. Run a backfill: `batch-assets pin {job.name}`."
        )
    return base


def _refuse_other_recipe(deployment: Deployment, job: Job, version: JobVersion, base: RegisteredVersion) -> None:
    ours, theirs = version.recipe(), deployment.version(base).recipe()
    differing = [name for name, value in ours.items() if value != theirs[name]]
    if differing:
        raise SpecError(
            f"{job.folder}: {', '.join(differing)} changed since {base.job_version} was pinned, so these records would "
            f"answer another question than the {base.records:,} that are published. Nothing was pinned. Answer all records "
            f"anew with a backfill: `batch-assets pin {job.name}`, or undo the change."
        )


def _published_schema(deployment: Deployment, base: RegisteredVersion) -> pa.Schema | None:
    """The columns that readers see; None when every record of the base is a dead letter."""
    first = next(iter(published_files(deployment, base.job_version)), None)
    if first is None:
        return None
    with deployment.objects.open(first.key) as file:
        return pq.read_schema(file)


def _id_type(job: Job, published: pa.Schema | None) -> pa.DataType:
    return pa.string() if published is None else plain_type(published.field(job.spec.snapshot.record_id).type)


def _no_records(deployment: Deployment, job: Job, published: pa.Schema | None) -> SnapshotPin:
    """A snapshot of no records, for a night that only removes some: one empty file with the columns there should be."""
    spec = job.spec.snapshot
    names = [spec.record_id, *spec.text, *job.template.columns, *spec.access_labels]
    names += [spec.record_class] if spec.record_class is not None else []
    columns = [pa.field(name, _type_of(name, published)) for name in dict.fromkeys(names)]
    with deployment.objects.scratch() as scratch:
        target = scratch / "none.parquet"
        pq.write_table(pa.schema(columns).empty_table(), target)
        data = target.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"snapshots/{sha256[:16]}-none.parquet"
    deployment.objects.put_if_absent(key, data)
    stored = deployment.objects.stat(key)
    if stored is None:
        raise missing(key, deployment.objects.address)
    pin = FilePin(key=key, size=stored.size, sha256=sha256, rows=0, modified_ns=stored.modified_ns)
    return SnapshotPin(
        sources=(),
        files=(pin,),
        rows=0,
        record_id=spec.record_id,
        text=spec.text,
        record_class=spec.record_class,
        access_labels=spec.access_labels,
    )


def _type_of(name: str, published: pa.Schema | None) -> pa.DataType:
    if published is None or name not in published.names:
        return pa.string()
    return plain_type(published.field(name).type)


def _refuse_other_types(
    deployment: Deployment, version: JobVersion, published: pa.Schema | None, base: RegisteredVersion
) -> None:
    """Ids and labels come from the snapshot, whose types the recipe does not fix."""
    if published is None:
        return
    ours = sealed_schema(
        version, output_model(deployment, version), SnapshotReader(version.snapshot, deployment.objects).schema()
    )
    for name in (version.snapshot.record_id, *version.snapshot.access_labels):
        if plain_type(ours.field(name).type) != plain_type(published.field(name).type):
            raise SnapshotError(
                f"The changes have column {name!r} as {ours.field(name).type}, but in {base.job_version}, which is "
                f"published, it is {published.field(name).type}. Nothing was pinned; give the column that type."
            )
