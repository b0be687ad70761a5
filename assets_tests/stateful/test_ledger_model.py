"""The whole ledger against a small model, compared after every step, on both databases.

The machine plays several workers, their zombies, an operator, the clock and a network that loses answers.
Every call of a superseded claim must be refused and change nothing. `test_planted_faults_are_found` takes
the ledger's guards away one by one: a machine that did not notice would prove nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from assets_tests import faults, invariants
from assets_tests.ledgers import Clock, failure, result, small_version
from assets_tests.losing import AFTER, BEFORE, losing
from assets_tests.stateful.model import RECOVERIES_MAX, Claim, Flush, Model
from batch_assets.core.leases import Lease
from batch_assets.core.outcomes import Reason
from batch_assets.core.suspects import ShardTrial
from batch_assets.errors import BatchAssetsError, StoreError
from batch_assets.storage.ledger import Ledger
from batch_assets.storage.outcomes import Put
from batch_assets.storage.publications import Publication
from batch_assets.storage.sealed import SealedFile
from batch_assets.storage.tables import failures, pointers, retries, shards, throughput, versions
from batch_assets.storage.tables import outcomes as outcomes_table
from batch_assets.storage.tables import trials as trials_table

LEASE_S = 10.0
IDS = [["0", "1"], ["2", "3"], ["4"]]
OWNERS = st.sampled_from(["w1", "w2"])
LOST = st.sampled_from([None, None, None, None, BEFORE, AFTER])
RANGES = st.sampled_from([range(3), range(3), range(1), range(1, 3)])
REASONS = (Reason.INVALID_OUTPUT, Reason.REJECTED, Reason.TIMEOUT)
WHICH = st.integers(0, 8)  # whose call it is; see `_who`
ANSWERS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["result", "fail", "third", "rejected", "timeout"])),
    min_size=1,
    max_size=3,
)
TRIALS = st.sampled_from(
    [ShardTrial(), ShardTrial(everyone=True), ShardTrial(groups=(("0",), ("1",)), running=True, everyone=True)]
)

_numbers = itertools.count()


class LedgerMachine(RuleBasedStateMachine):
    """Calls go to the ledger and to the model; answers, errors and all rows must be the same."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        super().__init__()
        self.ledger, self.clock = ledger, clock
        self.version = small_version(records=5, shard_size=2, prompt=f"model {next(_numbers)}")
        self.id = self.version.id
        self.model = Model(IDS)
        self.model.now = clock.now
        self.claims: list[tuple[Claim, Lease]] = []
        self.flushes: list[tuple[Flush, Put]] = []

    @initialize()
    def plan(self) -> None:
        self.ledger.plans.register(self.version, file_sha256="f")
        self.ledger.plans.write_plan(self.version, ())

    # --- workers

    @rule(owner=OWNERS, wanted=RANGES, has_id=st.booleans(), lost=LOST)
    def claim(self, owner: str, wanted: range, has_id: bool, lost: str | None) -> None:
        self._claim(owner, wanted, f"claim {next(_numbers)}" if has_id else None, lost)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, wanted=RANGES, lost=LOST)
    def claim_sent_again(self, which: int, wanted: range, lost: str | None) -> None:
        claim, _ = self._who(which)
        self._claim(claim.owner, wanted, claim.claim_id, lost)

    def _claim(self, owner: str, wanted: range, claim_id: str | None, lost: str | None) -> None:
        def ask() -> Lease | None:
            return self.ledger.leases.claim(
                self.id, owner=owner, lease_s=LEASE_S, wanted=wanted, claim_id=claim_id, recoveries_max=RECOVERIES_MAX
            )

        def expect() -> Claim | None:
            return self.model.claim(owner, LEASE_S, wanted, claim_id)

        def same(lease: Lease | None, claim: Claim | None) -> None:
            assert (lease is None) == (claim is None), (lease, claim)
            if lease is None or claim is None:
                return
            assert _lease_values(lease) == _claim_values(claim, self.id)
            self.claims.append((claim, lease))

        self._both("claim", ask, expect, lost, same)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, lost=LOST)
    def renew(self, which: int, lost: str | None) -> None:
        claim, lease = self._who(which)
        renew = partial(self.ledger.leases.renew, lease, lease_s=LEASE_S)
        self._both("renew", renew, lambda: self.model.renew(claim, LEASE_S), lost)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, answers=ANSWERS, lost=LOST)
    def put(self, which: int, answers: list[tuple[int, str]], lost: str | None) -> None:
        claim, lease = self._who(which)
        ids = IDS[claim.shard]
        wanted = [(ids[place % len(ids)], kind) for place, kind in answers]
        flush = Flush(
            claim,
            [result(one, payload=f'"{next(_numbers)}"') for one, kind in wanted if kind == "result"],
            [_failure(one, kind) for one, kind in wanted if kind != "result"],
        )
        put = Put(lease=lease, results=flush.results, failures=flush.failures, engine="e")
        self.flushes.append((flush, put))
        self._put(flush, put, lost)

    @precondition(lambda self: self.flushes)
    @rule(lost=LOST)
    def put_sent_again(self, lost: str | None) -> None:
        """A worker sends one flush at a time, so only the latest of a shard can come twice."""
        flush, put = self.flushes[-1]
        if self.model.shards[flush.claim.shard].last is flush:
            self._put(flush, put, lost)

    def _put(self, flush: Flush, put: Put, lost: str | None) -> None:
        def send() -> tuple[int, int, int]:
            receipt = self.ledger.outcomes.put(put)
            return receipt.stored, receipt.dead_lettered, receipt.discarded

        self._both("put", send, lambda: self.model.put(flush), lost)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, trouble=st.sampled_from([None, "it would not start"]), lost=LOST)
    def release(self, which: int, trouble: str | None, lost: str | None) -> None:
        claim, lease = self._who(which)
        release = partial(self.ledger.leases.release, lease, trouble=trouble, recoveries_max=RECOVERIES_MAX)
        self._both("release", release, lambda: self.model.release(claim, trouble), lost)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, rows=st.sampled_from([None, None, 0, 7]), sha256=st.sampled_from(["x", "x", "y"]), lost=LOST)
    def complete(self, which: int, rows: int | None, sha256: str, lost: str | None) -> None:
        claim, lease = self._who(which)
        count = self.model.shards[claim.shard].count("result") if rows is None else rows
        sealed = SealedFile(key="k", sha256=sha256, size=1, rows=count)
        complete = partial(self.ledger.leases.complete, lease, sealed)
        self._both("complete", complete, lambda: self.model.complete(claim, count, sha256), lost)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, lost=LOST)
    def finish(self, which: int, lost: str | None) -> None:
        """Answer what is missing and complete, so that examples come far."""
        claim, lease = self._who(which)
        flush = Flush(claim, [result(one) for one in IDS[claim.shard]], [])
        put = Put(lease=lease, results=flush.results, engine="e")
        self.flushes.append((flush, put))
        self._put(flush, put, lost)
        self.complete(which, None, "x", lost)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, trial=TRIALS, lost=LOST)
    def save_trial(self, which: int, trial: ShardTrial, lost: str | None) -> None:
        claim, lease = self._who(which)
        save = partial(self.ledger.trials.save, lease, trial)
        self._both("trial", save, lambda: self.model.save_trial(claim, trial), lost)

    @rule(dead=st.sampled_from([{"w1"}, {"w2"}, {"w1", "w2"}]), lost=LOST)
    def reclaim(self, dead: set[str], lost: str | None) -> None:
        reclaim = partial(
            self.ledger.leases.reclaim_dead, self.id, lambda owner: owner in dead, recoveries_max=RECOVERIES_MAX
        )
        self._both("reclaim", reclaim, lambda: self.model.reclaim(dead), lost)

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S, LEASE_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.model.now = self.clock.now

    # --- an operator; one rule, so that most steps are the workers'

    @rule(
        what=st.sampled_from(["requeue", "retry", "retry", "publish", "publish", "unpublish", "cancel", "retire"]),
        wanted=st.sampled_from([[0], [0, 1, 2], [2, 9]]),
        reason=st.sampled_from(REASONS),
        sure=st.booleans(),
        lost=LOST,
    )
    def intervene(self, what: str, wanted: list[int], reason: Reason, sure: bool, lost: str | None) -> None:
        doing, model = self.ledger.interventions, self.model
        if what == "requeue":
            self._both("requeue", partial(doing.requeue, self.id, wanted), lambda: model.requeue(wanted), lost)
        elif what == "retry":
            retry = partial(doing.retry_dead_letters, self.id, reason.value, who="me")
            self._both("retry_dead_letters", retry, lambda: model.retry(reason.value), lost)
        elif what == "publish" and not model.published:
            self._both("publish", partial(self._publish, str(next(_numbers))), model.publish, lost)
        elif what == "unpublish" and model.published:
            with self.ledger.database.write("test") as connection:
                connection.execute(sa.delete(pointers).where(pointers.c.job == self.id))
            model.withdraw()
        elif what == "cancel" and sure and reason is Reason.TIMEOUT:  # seldom: nothing goes on afterwards
            self._both("cancel", partial(doing.cancel, self.id), model.cancel, lost)
        elif what == "retire" and sure:
            self._both("retire", partial(doing.retire, self.id, forget=not model.was_published), model.retire, None)

    def _publish(self, publication_id: str) -> None:
        self.ledger.publications.move(
            Publication(
                publication_id=f"{self.id} {publication_id}",
                job=self.id,
                kind="publish",
                from_version=None,
                to_version=self.id,
                who="me",
                verdicts={},
            )
        )

    # --- the comparison

    def _both(
        self,
        name: str,
        call: Callable[[], Any],
        expect: Callable[[], Any],
        lost: str | None,
        same: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """One call of both; when its answer is lost, the state is compared and the call is sent again."""
        if lost is not None:
            with losing(f"{name}.{lost}") as fired:
                answer = _answer(call)
            if fired:
                assert answer is StoreError
                if lost == AFTER:
                    _answer(expect)
                self._compare()
                answer = _answer(call)
        else:
            answer = _answer(call)
        expected = _answer(expect)
        if same is None:
            assert answer == expected, name
        else:
            same(answer, expected)
        self._compare()

    def _compare(self) -> None:
        found, expected = _found(self.ledger, self.id), [self.model.rows(shard) for shard in self.model.shards]
        for number, (there, here) in enumerate(zip(found.pop("shards"), expected, strict=True)):
            assert there == here, f"shard {number}"
        assert found == {
            "cancelled": self.model.cancelled,
            "retired": self.model.retired,
            "published": self.model.published,
            "retries": self.model.retries,
            "flushed": +self.model.flushed,
        }

    def teardown(self) -> None:
        invariants.check(self.ledger, self.id)

    def _who(self, which: int) -> tuple[Claim, Lease]:
        """Two times in three somebody who holds a shard, otherwise anybody of late, zombies included."""
        holding = [one for one in self.claims if self.model.shards[one[0].shard].holder is one[0]]
        pool = holding if which < 6 and holding else self.claims
        return pool[-1 - which % 3 % len(pool)]


def _answer(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of error it raises."""
    try:
        return call()
    except BatchAssetsError as error:
        return type(error)


def _failure(record: str, kind: str) -> Any:
    if kind == "rejected":
        return failure(record, attempt=1, reason=Reason.REJECTED)
    if kind == "timeout":
        return failure(record, attempt=3, reason=Reason.TIMEOUT)
    return failure(record, attempt=3 if kind == "third" else 1)


def _lease_values(lease: Lease) -> tuple[Any, ...]:
    return lease.job_version, lease.shard, lease.owner, lease.epoch, lease.recoveries, lease.reopened, lease.records


def _claim_values(claim: Claim, job_version: str) -> tuple[Any, ...]:
    here = claim.shard, claim.owner, claim.number, claim.recoveries, claim.reopened, len(IDS[claim.shard])
    return job_version, *here


def _found(ledger: Ledger, job_version: str) -> dict[str, Any]:
    """All that the ledger has for the version, in the model's shape."""
    with ledger.database.read() as connection:

        def rows(table: sa.Table) -> Iterator[Any]:
            query = sa.select(table).where(table.c.job_version == job_version).order_by(*table.primary_key)
            return iter(connection.execute(query))

        found = {
            row.shard: dict(row._mapping) | {"outcomes": {}, "failures": {}, "trial": None} for row in rows(shards)
        }
        for row in rows(outcomes_table):
            what = row.payload if row.kind == "result" else row.reason
            found[row.shard]["outcomes"][row.record_id] = (row.kind, what, row.attempt)
        for row in rows(failures):
            found[row.shard]["failures"][row.record_id, row.retry, row.attempt] = row.reason
        trial_rows = [row.shard for row in rows(trials_table)]
        buckets: Counter[str] = Counter()
        for row in rows(throughput):
            buckets.update({name: row._mapping[name] for name in ("outcomes", "prompt_tokens", "output_tokens")})
        (version,) = rows(versions)
        other = {
            "cancelled": version.cancelled_at is not None,
            "retired": version.retired_at is not None,
            "published": any(rows(pointers)),
            "retries": [(row.reason, row.records) for row in rows(retries)],
            "flushed": +buckets,
        }
    for shard in trial_rows:
        found[shard]["trial"] = ledger.trials.of(
            Lease(job_version=job_version, shard=shard, epoch=0, owner="", records=1)
        )
    names = Model(IDS).rows(Model(IDS).shards[0])
    return {"shards": [{name: one[name] for name in names} for _, one in sorted(found.items())], **other}


@pytest.mark.parametrize("fault", ["epoch", "owner and state", "expiry", "whole", "put_id", "claim_id"])
def test_planted_faults_are_found(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of its guards, the ledger is told from the model within a few seconds."""
    faults.FAULTS[fault](monkeypatch)
    with pytest.raises((AssertionError, sa.exc.IntegrityError)):
        run_machine(f"sqlite:///{tmp_path / 'l.sqlite'}", examples=1000, steps=30, phases=(Phase.generate,))


def run_machine(url: str, *, examples: int, steps: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    clock = Clock()
    ledger = Ledger(url, clock=clock)
    try:
        run_state_machine_as_test(
            partial(LedgerMachine, ledger, clock),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                phases=[phase for phase in phases if phase is not Phase.explain],
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )
    finally:
        ledger.close()


def test_the_ledger_does_what_the_model_does(ledger_url: str) -> None:
    """Whatever workers, zombies, operators, the clock and the network do: same answers, same errors, same rows."""
    run_machine(ledger_url, examples=60, steps=40)
