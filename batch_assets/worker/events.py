"""What becomes of a leased shard, as the committer reports it to the worker's loop."""

from __future__ import annotations

from dataclasses import dataclass

from batch_assets.core.leases import Lease
from batch_assets.storage.sealed import SealedFile


@dataclass(frozen=True, kw_only=True)
class ShardSealed:
    """A shard is done for good."""

    lease: Lease
    sealed: SealedFile
    dead_letters: int


@dataclass(frozen=True, kw_only=True)
class ShardFenced:
    """The ledger refused a write: somebody else has the shard."""

    lease: Lease
    reason: str


@dataclass(frozen=True, kw_only=True)
class ShardFailed:
    """The shard cannot be finished as things are."""

    lease: Lease
    reason: str


Event = ShardSealed | ShardFenced | ShardFailed
