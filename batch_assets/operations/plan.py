"""Planning: check every record id, give up what can never be answered, write the shard table.

One pass of DuckDB over the snapshot finds duplicate and null ids and the few records that may be
too long or empty; only those are rendered and tokenized here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batch_assets.core.outcomes import Failure
from batch_assets.core.prompt import parse_prompt
from batch_assets.core.quoting import quoted
from batch_assets.core.version import JobVersion
from batch_assets.engine.create import create_encoder
from batch_assets.errors import SnapshotError
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.intervene import refuse_cancelled
from batch_assets.storage.plans import RegisteredVersion
from batch_assets.storage.scan import EXAMPLES, IdProblems, SnapshotScan, scan
from batch_assets.worker.records import RecordPreparer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The outcome of planning."""

    records: int
    shards: int
    dead_letters: int  # known in advance
    is_new: bool


def plan(deployment: Deployment, registered: RegisteredVersion) -> Plan:
    """Plan a version; planning again changes nothing.

    Raises SnapshotError when record ids are null or not unique, or the files are not as pinned.
    """
    refuse_cancelled(registered)
    version = deployment.version(registered)
    if registered.planned:
        dead = deployment.ledger.plans.write_plan(version, ())
        return Plan(records=version.records, shards=version.shards, dead_letters=dead, is_new=False)
    reader = deployment.reader(version)
    reader.verify_files()
    preparer = preparer_for(deployment, version)
    with scan(reader, deployment.settings.root / "scratch") as snapshot:
        _refuse_bad_ids(snapshot.id_problems(), version)
        _refuse_changed_and_removed(deployment, version, snapshot)
        snapshot.read_through(version.snapshot.access_labels)
        dead = deployment.ledger.plans.write_plan(version, _known_dead(version, snapshot, preparer))
    return Plan(records=version.records, shards=version.shards, dead_letters=dead, is_new=True)


def preparer_for(deployment: Deployment, version: JobVersion) -> RecordPreparer:
    """Renders and tokenizes this version's records, from the prompt as it was pinned."""
    template = parse_prompt(version.prompt.text)
    encoder = create_encoder(
        version.model,
        deployment.settings.models,
        instruction=template.instruction,
        prompt_format=version.prompt.format,
    )
    return RecordPreparer(version, template, encoder, deployment.reader(version))


def _known_dead(version: JobVersion, snapshot: SnapshotScan, preparer: RecordPreparer) -> Iterator[tuple[int, Failure]]:
    pin = version.snapshot
    fixed_bytes = len(preparer.template.record_template.encode())
    spare = version.decoding.input_tokens_max - preparer.encoder.overhead_tokens - fixed_bytes
    records = snapshot.suspicious(
        columns=[pin.record_id, *pin.text, *preparer.template.columns],
        text=pin.text,
        bytes_max=max(spare, 0),
        control_tokens=preparer.encoder.control_tokens,
    )
    for row, record in records:
        prepared = preparer.prepare(0, str(record[pin.record_id]), record, attempt=0)
        if isinstance(prepared, Failure):
            yield row, prepared


def _refuse_bad_ids(problems: IdProblems, version: JobVersion) -> None:
    column = version.snapshot.record_id
    if problems.nulls:
        rows = ", ".join(map(str, problems.null_rows))
        raise SnapshotError(
            f"{problems.nulls:,} records have no record id ({column} is null; rows {rows}{_more(problems.nulls)}, counted "
            "from 0). Every record needs one: repair the snapshot and pin again."
        )
    if problems.duplicated_ids:
        names = "; ".join(f"{quoted(record_id)} in rows {a} and {b}" for record_id, a, b in problems.duplicates)
        raise SnapshotError(
            f"{problems.duplicated_ids:,} record ids are not unique ({column}: {names}{_more(problems.duplicated_ids)}). "
            "One id must be one record: repair the snapshot and pin again."
        )


def _refuse_changed_and_removed(deployment: Deployment, version: JobVersion, snapshot: SnapshotScan) -> None:
    if version.changes is None or version.changes.removed is None:
        return
    count, examples = snapshot.ids_also_in(deployment.objects.uri(version.changes.removed.key))
    if count:
        names = ", ".join(map(quoted, examples))
        raise SnapshotError(
            f"{count:,} records are both changed and removed ({names}{_more(count)}). One of the two must be meant: repair "
            "the lists and pin again."
        )


def _more(count: int) -> str:
    return ", …" if count > EXAMPLES else ""
