"""A log that the database itself keeps of every move, by triggers: who held what when a row was written.

Polling sees moments; triggers see everything, in the order in which it happened. Each row names the shard's
epoch, state and owner at the moment of the write, as the database had them in that same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from batch_assets.storage.ledger import Ledger

_COLUMNS = "what, shard, epoch, state, owner, detail, at_epoch, at_state, at_owner"

_TABLE = """CREATE TABLE chaos_audit (
    seq {serial}, at {real}, what TEXT, shard INTEGER, epoch INTEGER, state TEXT, owner TEXT, detail TEXT,
    at_epoch INTEGER, at_state TEXT, at_owner TEXT)"""

# (trigger, event and table, condition, values)
_NOW = "s.epoch, s.state, s.owner FROM shards s WHERE s.job_version = {row}.job_version AND s.shard = {row}.shard"
_MOVED = "NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch"
_TRIGGERS = (
    (
        "move",
        "UPDATE ON shards",
        _MOVED,
        "'move', NEW.shard, NEW.epoch, NEW.state, NEW.owner, NEW.trouble, OLD.epoch, OLD.state, OLD.owner",
    ),
    (
        "outcome",
        "INSERT ON outcomes",
        "NEW.epoch > 0",
        "'outcome', NEW.shard, NEW.epoch, NEW.kind, NEW.worker, NEW.record_id, " + _NOW.format(row="NEW"),
    ),
    (
        "failure",
        "INSERT ON failures",
        "NEW.epoch > 0",
        "'failure', NEW.shard, NEW.epoch, NEW.reason, NEW.worker, NEW.record_id, " + _NOW.format(row="NEW"),
    ),
    (
        "undone",
        "DELETE ON outcomes",
        "OLD.epoch >= 0",
        "'undone', OLD.shard, OLD.epoch, OLD.kind, OLD.worker, OLD.record_id, " + _NOW.format(row="OLD"),
    ),
    (
        "rewritten",
        "UPDATE ON outcomes",
        "NEW.epoch >= 0",
        "'rewritten', NEW.shard, NEW.epoch, NEW.kind, NEW.worker, NEW.record_id, " + _NOW.format(row="NEW"),
    ),
    *(
        (
            f"trial_{event.lower()}",
            f"{event} ON trials",
            "NEW.epoch >= 0",
            "'trial', NEW.shard, NEW.epoch, CASE WHEN NEW.running > 0 THEN 'running' ELSE 'waiting' END, NULL, "
            "NEW.suspects, " + _NOW.format(row="NEW"),
        )
        for event in ("INSERT", "UPDATE")
    ),
)


@dataclass(frozen=True)
class Entry:
    """One thing that was written, and how the shard stood at that moment (for a move: before it)."""

    seq: int
    at: float  # by the database's clock
    what: str  # move, outcome, failure, trial; undone and rewritten must never happen
    shard: int
    epoch: int
    state: str  # of a move: the new state; of an outcome: its kind; of a failure: its reason
    owner: str | None
    detail: str | None  # of a move: the trouble; of a trial: the groups; else the record
    at_epoch: int
    at_state: str
    at_owner: str | None


@dataclass(frozen=True, kw_only=True)
class LeaseSpan:
    """One claim of a shard, from beginning to end."""

    shard: int
    epoch: int
    owner: str
    claimed_seq: int
    claimed_at: float
    end: str = "open"  # completed, released, lost
    running: list[tuple[int, list[list[str]], bool]] = field(default_factory=list)  # seq, groups, whether running


def install(ledger: Ledger) -> None:
    """Start the log of a planned ledger."""
    server = ledger.database.is_postgresql
    table = _TABLE.format(
        serial="BIGSERIAL PRIMARY KEY" if server else "INTEGER PRIMARY KEY AUTOINCREMENT",
        real="DOUBLE PRECISION" if server else "REAL",
    )
    clock = "extract(epoch from clock_timestamp())" if server else "(julianday('now') - 2440587.5) * 86400.0"
    with ledger.database.write("audit") as connection:
        connection.exec_driver_sql(table)
        for name, event, condition, values in _TRIGGERS:
            insert = f"INSERT INTO chaos_audit (at, {_COLUMNS}) SELECT {clock}, {values};"
            if server:
                body = f"BEGIN {insert} RETURN NULL; END"
                connection.exec_driver_sql(
                    f"CREATE FUNCTION chaos_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
                )
                connection.exec_driver_sql(
                    f"CREATE TRIGGER chaos_{name} AFTER {event} FOR EACH ROW WHEN ({condition}) "
                    f"EXECUTE FUNCTION chaos_{name}()"
                )
            else:
                connection.exec_driver_sql(
                    f"CREATE TRIGGER chaos_{name} AFTER {event} WHEN {condition} BEGIN {insert} END"
                )


def entries(ledger: Ledger) -> list[Entry]:
    """The whole log, in the order of writing."""
    with ledger.database.read() as connection:
        query = sa.text(f"SELECT seq, at, {_COLUMNS} FROM chaos_audit ORDER BY seq")
        return [Entry(*row) for row in connection.execute(query)]


def written_out_of_turn(log: Sequence[Entry]) -> list[str]:
    """Every write by an epoch that was not the current one, and every move there must not be. Empty is good.

    The log is replayed: a shard's epoch is known at each point from the claims before it.
    """
    wrong: list[str] = []
    epochs: dict[int, tuple[int, str | None]] = {}  # the epoch now, and its owner while it is leased
    for one in log:
        epoch, owner = epochs.get(one.shard, (0, None))
        if one.what == "move":
            claims = (one.at_state, one.state) == ("pending", "leased")
            if one.at_epoch != epoch or one.epoch != epoch + claims or (one.state == "leased" and not claims):
                wrong.append(f"a move that is none: {one}")
            epochs[one.shard] = one.epoch, one.owner
        elif one.what in ("undone", "rewritten"):
            wrong.append(f"an outcome was {one.what}: {one}")
        elif (one.what, one.at_state) == ("trial", "pending") and one.epoch <= epoch:
            continue  # with the end of a lease: whether its worker has left with notice, or is known to have died
        elif (one.epoch, one.at_epoch) != (epoch, epoch) or one.at_state != "leased" or owner is None:
            wrong.append(f"written at epoch {epoch} (owner {owner}): {one}")
        elif one.what != "trial" and (one.owner, one.at_owner) != (owner, owner):
            wrong.append(f"written by somebody else than {owner}: {one}")
    return wrong


def leases(log: Sequence[Entry]) -> list[LeaseSpan]:
    """All claims in the order of their ends, each with its trials."""
    spans: list[LeaseSpan] = []
    current: dict[int, LeaseSpan] = {}
    for one in log:
        if one.what == "move" and one.state == "leased":
            current[one.shard] = LeaseSpan(
                shard=one.shard,
                epoch=one.epoch,
                owner=str(one.owner),
                claimed_seq=one.seq,
                claimed_at=one.at,
            )
        elif one.what == "move" and one.shard in current:
            span = current.pop(one.shard)
            taken = f"(epoch {span.epoch}) was lost without notice" in (one.detail or "")
            end = one.state if one.state != "pending" else "lost" if taken else "released"
            spans.append(LeaseSpan(**{**vars(span), "end": end}))
        elif one.what == "trial" and one.shard in current:
            groups = json.loads(one.detail or "[]")
            current[one.shard].running.append((one.seq, groups, one.state == "running"))
    return [*spans, *current.values()]
