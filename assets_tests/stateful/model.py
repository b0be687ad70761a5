"""What the ledger should do, in plain Python, for one version.

Who may write is judged by claims that only the model knows: every claim that takes a shard is an object
of its own, and the shard remembers which one holds it. Epochs are not looked at; the model predicts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from batch_assets.core.leases import SHARD_STATES
from batch_assets.core.outcomes import Failure, Result
from batch_assets.core.suspects import ShardTrial
from batch_assets.errors import Fenced, GateError, ShardTrouble, VersionError
from batch_assets.storage.interventions import Retried

RECOVERIES_MAX = 2
OPEN = ("pending", "leased", "needs_operator")


@dataclass(eq=False)
class Claim:
    """One taking of one shard; equal only to itself."""

    shard: int
    owner: str
    number: int  # the shard's claims so far, this one included: what the epoch should be
    recoveries: int
    reopened: int
    claim_id: str | None


@dataclass(eq=False)
class Flush:
    """One put; sent again, it is the same object."""

    claim: Claim
    results: list[Result]
    failures: list[Failure]

    @property
    def final(self) -> list[Failure]:
        return [one for one in self.failures if one.is_final]


@dataclass
class Shard:
    """A shard as it should be."""

    ids: list[str]
    state: str = "pending"
    holder: Claim | None = None
    expires: float | None = None
    claims: int = 0
    outcomes: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # id -> kind, payload or reason, attempt
    failures: dict[tuple[str, int, int], str] = field(default_factory=dict)  # id, retry, attempt -> reason
    discarded: int = 0
    recoveries: int = 0
    trouble: str | None = None
    done_at_claim: int = 0
    reopened: int = 0
    sealed: str | None = None
    completed_by: Claim | None = None
    last: Flush | None = None
    trial: ShardTrial | None = None

    def count(self, kind: str) -> int:
        return sum(one[0] == kind for one in self.outcomes.values())


class Model:
    """Each method does what the ledger's should do, and raises what it should raise."""

    def __init__(self, shards: Iterable[list[str]]) -> None:
        self.shards = [Shard(ids) for ids in shards]
        self.now = 0.0
        self.retries: list[tuple[str, int]] = []
        self.flushed: Counter[str] = Counter()
        self.cancelled = self.retired = self.published = self.was_published = False

    # --- leases

    def claim(self, owner: str, lease_s: float, wanted: range, claim_id: str | None) -> Claim | None:
        for shard in self.shards:
            if claim_id is not None and shard.holder is not None and shard.holder.claim_id == claim_id:
                shard.holder.recoveries = shard.recoveries  # a trial has begun meanwhile
                return shard.holder
        for shard in (self.shards[number] for number in wanted):
            if shard.holder is not None and (shard.expires or 0.0) < self.now:
                self._lose(shard)
        for number in wanted:
            shard = self.shards[number]
            if shard.state == "pending":
                shard.claims += 1
                shard.state, shard.expires = "leased", self.now + lease_s
                shard.done_at_claim = len(shard.outcomes)
                shard.holder = Claim(number, owner, shard.claims, shard.recoveries, shard.reopened, claim_id)
                return shard.holder
        return None

    def renew(self, claim: Claim, lease_s: float) -> None:
        shard = self._held(claim)
        if (shard.expires or 0.0) < self.now:
            raise Fenced("expired")
        shard.expires = self.now + lease_s

    def release(self, claim: Claim, trouble: str | None) -> bool:
        shard = self.shards[claim.shard]
        if shard.holder is not claim:
            return False
        if trouble is not None:
            self._fail(shard, trouble)
        else:
            self._free(shard, "pending")
            if len(shard.outcomes) > shard.done_at_claim:
                shard.recoveries = 0
        if shard.trial is not None:
            shard.trial = replace(shard.trial, running=False, died=False)
        return True

    def complete(self, claim: Claim, rows: int, sha256: str) -> None:
        shard = self.shards[claim.shard]
        if shard.completed_by is claim and shard.sealed == sha256:
            return  # said once more
        self._held(claim)
        if len(shard.outcomes) != len(shard.ids) or rows != shard.count("result"):
            raise ShardTrouble("not whole")
        self._free(shard, "completed")
        shard.sealed, shard.recoveries, shard.trouble, shard.trial = sha256, 0, None, None
        shard.completed_by = claim

    def reclaim(self, dead: set[str]) -> int:
        lost = [one for one in self.shards if one.holder is not None and one.holder.owner in dead]
        for shard in lost:
            self._lose(shard)
            if shard.trial is not None and shard.trial.running:
                shard.trial = replace(shard.trial, died=True)  # known to be dead, not only silent
        return len(lost)

    # --- outcomes

    def put(self, flush: Flush) -> tuple[int, int, int]:
        shard = self._held(flush.claim)
        if shard.last is flush:
            return len(flush.results), len(flush.final), 0
        shard.last = flush
        stored = dead = 0
        for one in flush.results:
            if one.record_id not in shard.outcomes:
                shard.outcomes[one.record_id] = ("result", one.payload, one.attempt)
                stored += 1
        for bad in flush.final:
            if bad.record_id not in shard.outcomes:
                shard.outcomes[bad.record_id] = ("dead_letter", bad.reason.value, bad.attempt)
                dead += 1
        for bad in flush.failures:
            shard.failures.setdefault((bad.record_id, 0, bad.attempt), bad.reason.value)
        discarded = len(flush.results) + len(flush.final) - stored - dead
        shard.discarded += discarded
        items: list[Result | Failure] = [*flush.results, *flush.failures]
        self.flushed["outcomes"] += stored + dead
        self.flushed["prompt_tokens"] += sum(item.prompt_tokens for item in items)
        self.flushed["output_tokens"] += sum(item.output_tokens for item in items)
        return stored, dead, discarded

    def save_trial(self, claim: Claim, trial: ShardTrial) -> None:
        shard = self._held(claim)
        shard.trial = trial or None
        if trial.running and trial:
            shard.recoveries = 0

    # --- an operator

    def requeue(self, wanted: list[int]) -> dict[int, str]:
        if any(number >= len(self.shards) for number in wanted):
            raise VersionError("no such shard")
        found = {number: self.shards[number].state for number in wanted}
        for number, state in found.items():
            if state == "needs_operator":
                shard = self.shards[number]
                shard.state, shard.recoveries, shard.trouble, shard.trial = "pending", 0, None, None
        return found

    def cancel(self) -> dict[str, int]:
        if self.published:
            raise GateError("published")
        for shard in self.shards:
            if shard.state in OPEN:
                self._free(shard, "cancelled")
        states = Counter(shard.state for shard in self.shards)
        self.cancelled = self.cancelled or set(states) != {"completed"}
        return {state: states[state] for state in SHARD_STATES if state in states}

    def retry(self, reason: str) -> Retried:
        if self.was_published:
            raise GateError("published, now or once")
        if self.cancelled or self.retired:
            raise VersionError("for good")
        dead = {number: _dead(shard, reason) for number, shard in enumerate(self.shards)}
        dead = {number: ids for number, ids in dead.items() if ids}
        if not dead:
            return Retried(retry=None, records=0, shards=0)
        self.retries.append((reason, sum(map(len, dead.values()))))
        for number, ids in dead.items():
            shard = self.shards[number]
            if shard.trial is not None:
                shard.trial = replace(shard.trial, running=False, died=False)
            for record in ids:
                del shard.outcomes[record]
            shard.failures = {
                (record, len(self.retries) if retry == 0 and record in ids else retry, attempt): why
                for (record, retry, attempt), why in shard.failures.items()
            }
            shard.reopened += shard.state == "completed"
            shard.done_at_claim, shard.sealed, shard.completed_by = 0, None, None
            self._free(shard, "needs_operator" if shard.state == "needs_operator" else "pending")
        return Retried(retry=len(self.retries), records=self.retries[-1][1], shards=len(dead))

    def publish(self) -> None:
        if self.retired or any(shard.state != "completed" for shard in self.shards):
            raise GateError("retired, or open shards")
        self.published = self.was_published = True

    def withdraw(self) -> None:
        """Readers see another version again."""
        self.published = False

    def retire(self) -> bool:
        if self.published or any(shard.state in OPEN for shard in self.shards):
            raise GateError("published or open")
        first, self.retired = not self.retired, True
        return first

    # --- what is expected to be found

    def rows(self, shard: Shard) -> dict[str, Any]:
        return {
            "state": shard.state,
            "epoch": shard.claims,
            "owner": shard.holder and shard.holder.owner,
            "claim_id": shard.holder and shard.holder.claim_id,
            "lease_expires_at": shard.expires,
            "results": shard.count("result"),
            "dead_letters": shard.count("dead_letter"),
            "duplicates_discarded": shard.discarded,
            "claimed_outcomes": shard.done_at_claim,
            "recoveries": shard.recoveries,
            "trouble": shard.trouble,
            "reopened": shard.reopened,
            "sealed_sha256": shard.sealed,
            "trial": shard.trial,
            "outcomes": {} if self.retired else shard.outcomes,
            "failures": {} if self.retired else shard.failures,
        }

    def _held(self, claim: Claim) -> Shard:
        shard = self.shards[claim.shard]
        if shard.holder is not claim:
            raise Fenced("superseded")
        return shard

    def _lose(self, shard: Shard) -> None:
        assert shard.holder is not None
        self._fail(shard, f"worker {shard.holder.owner} (epoch {shard.holder.number}) was lost without notice")

    def _fail(self, shard: Shard, trouble: str) -> None:
        shard.recoveries = 1 if len(shard.outcomes) > shard.done_at_claim else shard.recoveries + 1
        shard.trouble = trouble
        self._free(shard, "needs_operator" if shard.recoveries >= RECOVERIES_MAX else "pending")

    @staticmethod
    def _free(shard: Shard, state: str) -> None:
        shard.state, shard.holder, shard.expires = state, None, None


def _dead(shard: Shard, reason: str) -> set[str]:
    return {record for record, one in shard.outcomes.items() if one[:2] == ("dead_letter", reason)}
