"""A small planned version in a ledger, and short ways to act on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.spec import DecodingSpec
from batch_assets.core.version import FilePin, JobVersion, ModelPin, PromptPin, SchemaPin, SnapshotPin
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put, PutReceipt
from batch_assets.storage.sealed import SealedFile

LEASE_S = 600.0


@dataclass
class Clock:
    """Seconds that only the test moves."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def small_version(*, records: int = 10, shard_size: int = 4, prompt: str = "p") -> JobVersion:
    """A version value; its files do not exist."""
    source = FilePin(key="/data/a.parquet", size=10, sha256="aa", rows=records)
    return JobVersion(
        job="tickets",
        label="v1",
        snapshot=SnapshotPin(
            sources=(source,),
            files=(source,),
            rows=records,
            record_id="id",
            text=("body",),
            record_class=None,
            access_labels=(),
        ),
        model=ModelPin(provider="scripted", name="scripted", digest="d", files=(), dtype="none", quantization=None),
        prompt=PromptPin(text=prompt, sha256=prompt, format="plain", template_sha256="t"),
        decoding=DecodingSpec(input_tokens_max=100),
        output_schema=SchemaPin(source="s", sha256="s"),
        shard_size=shard_size,
        pinned_at="2026-01-01T00:00:00+00:00",
    )


def result(record_id: str, *, attempt: int = 1, payload: str = "{}") -> Result:
    return Result(
        record_id=record_id,
        payload=payload,
        attempt=attempt,
        finish_reason="stop",
        prompt_tokens=10,
        cached_tokens=5,
        output_tokens=3,
    )


def failure(record_id: str, *, attempt: int, reason: Reason = Reason.INVALID_OUTPUT) -> Failure:
    return Failure(record_id=record_id, attempt=attempt, reason=reason, error="category: not one of a, b")


@dataclass
class LedgerUnderTest:
    """Records are named by their row: shard 0 holds "0" to "3", shard 2 holds "8" and "9"."""

    ledger: Ledger
    clock: Clock
    version: JobVersion = field(default_factory=small_version)

    def __post_init__(self) -> None:
        self.ledger.plans.register(self.version, file_sha256="f")
        self.ledger.plans.write_plan(self.version, ())

    @property
    def every_shard(self) -> range:
        return range(self.version.shards)

    def claim(self, owner: str = "w1", wanted: range | None = None) -> Lease:
        lease = self.try_claim(owner, wanted)
        assert lease is not None
        return lease

    def try_claim(self, owner: str = "w1", wanted: range | None = None) -> Lease | None:
        shards = self.every_shard if wanted is None else wanted
        return self.ledger.leases.claim(self.version.id, owner=owner, lease_s=LEASE_S, wanted=shards)

    def put(self, lease: Lease, *outcomes: Result | Failure) -> PutReceipt:
        results = [one for one in outcomes if isinstance(one, Result)]
        failures = [one for one in outcomes if isinstance(one, Failure)]
        return self.ledger.outcomes.put(Put(lease=lease, results=results, failures=failures, engine="scripted"))

    def answer_all(self, lease: Lease) -> None:
        first = lease.shard * self.version.shard_size
        self.put(lease, *(result(str(row)) for row in range(first, first + lease.records)))

    def complete(self, lease: Lease, rows: int | None = None) -> None:
        sealed = SealedFile(key=f"s{lease.shard}", sha256="x", size=1, rows=lease.records if rows is None else rows)
        self.ledger.leases.complete(lease, sealed)

    def states(self) -> list[str]:
        return [row.state for row in self.ledger.progress.shards(self.version.id)]
