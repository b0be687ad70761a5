"""The rules of a lease: the states of a shard, and how long a worker may trust its lease.

The epoch counts the claims of a shard and is the fencing token: every write of a worker carries
it, and a write with an old epoch changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARD_STATES = ("pending", "leased", "completed", "needs_operator", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to work on one shard, for as long as it is renewed."""

    job_version: str
    shard: int
    epoch: int
    owner: str
    records: int


def trusted_until(*, sent_at: float, lease_s: float) -> float:
    """Until when a worker may believe in its lease, on its own monotonic clock.

    Measured from when the renewal was *sent*: the answer may have been on its way for long. A
    tenth of the lease is kept as margin for the difference in clock rates and the time that
    stopping takes.
    """
    return sent_at + lease_s * 0.9
