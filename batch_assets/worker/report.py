"""What a worker is told, and what it tells: limits in, report and shard figures out."""

from __future__ import annotations

from dataclasses import dataclass, field

from batch_assets.engine.protocol import EngineInfo


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """The worker's deadlines and intervals; from the job's spec."""

    lease_s: float
    renew_every_s: float
    start_deadline_s: float
    progress_deadline_s: float
    record_deadline_s: float
    restarts_max: int
    recoveries_max: int
    drain_s: float


@dataclass(kw_only=True)
class WorkerReport:
    """What one worker did."""

    shards_completed: int = 0
    results: int = 0
    dead_letters: int = 0
    duplicates_discarded: int = 0
    engine_restarts: int = 0
    leases_lost: int = 0
    records_aborted: int = 0  # waste: in the engine when a lease was lost or a record overdue
    drained: bool = False  # stopped early by a notice; the rest is for others
    engine_stuck: bool = False  # it did not shut down; its processes were killed
    orphans_ended: list[str] = field(default_factory=list)  # engine processes that dead workers had left behind
    engine: EngineInfo | None = None


@dataclass(frozen=True, kw_only=True)
class ShardStats:
    """How this worker got through a shard."""

    seconds: float  # from claim to completion; overlaps with the neighbouring shards
    prompt_tokens: int
    output_tokens: int
