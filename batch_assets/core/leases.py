"""The rules of a lease: the states of a shard, the moves between them, and how long to trust a lease.

The epoch counts the claims of a shard and is the fencing token: every write of a worker carries
it, and a write with an old epoch changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARD_STATES = ("pending", "leased", "completed", "needs_operator", "cancelled")

# Every move there is. The database refuses all others by itself (`storage/migrations`), and a test
# compares the two. `completed` is left in one way only: an operator puts dead letters back.
LEGAL_MOVES = {
    ("pending", "leased"): "claim",
    ("leased", "pending"): "release by the worker, reclaim from a silent one",
    ("leased", "completed"): "complete",
    ("leased", "needs_operator"): "recovery has failed too often at the same point",
    ("needs_operator", "pending"): "requeue",
    ("pending", "cancelled"): "cancel",
    ("leased", "cancelled"): "cancel",
    ("needs_operator", "cancelled"): "cancel",
    ("completed", "pending"): "reopen, to retry dead letters",
}

# Workers lost in a row without any progress: after two, the shard's records are suspected.
SUSPECT_AFTER_RECOVERIES = 2


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to work on one shard, for as long as it is renewed."""

    job_version: str
    shard: int
    epoch: int
    owner: str
    records: int
    recoveries: int = 0  # workers lost here in a row without progress, before this claim
    reopened: int = 0  # how often an operator has put dead letters of a sealed shard back


def trusted_until(*, sent_at: float, lease_s: float) -> float:
    """Until when a worker may believe in its lease, on its own monotonic clock.

    Measured from when the renewal was *sent*: the answer may have been on its way for long. A
    tenth of the lease is kept as margin for the difference in clock rates and the time that
    stopping takes.
    """
    return sent_at + lease_s * 0.9
