"""What must be true of a history when it is over. Every bound is computed from what has happened.

The scripted engine's log is the witness: one line per request served. Nothing in the ledger may come from
nowhere, and nothing that was answered may be missing in it without a lost lease that explains it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy as sa

from assets_tests import invariants
from assets_tests.chaos import audit, processes
from assets_tests.chaos.audit import LeaseSpan
from assets_tests.chaos.run import Run
from assets_tests.factories import record_id
from batch_assets.core.outcomes import ATTEMPTS_MAX
from batch_assets.engine.schema_answers import AnswerMaker
from batch_assets.operations.work import output_model
from batch_assets.storage.tables import failures, outcomes

# How an attempt can fail that was answered: these have a line in the engine's log.
_ANSWERED = {"invalid_output", "engine_error", "truncated"}
# Why a record may be given up, by how it misbehaves. Whatever is silent can also look like a dead engine.
_REASONS = {
    "kills_engine": {"engine_killer"},
    "kills_worker": {"engine_killer"},
    "never_returns": {"timeout", "engine_killer"},
    "hangs_engine": {"timeout", "engine_killer"},
    "text": {"invalid_output"},
}
_NOT_ANSWERED = ("kills_engine", "kills_worker", "hangs_engine")
_PUT_S = 1.5  # a put takes no longer while the store is well, even on a busy machine
_STORE_FAULTS = ("disk_full", "slow_store", "server_restarted", "connection_cut", "network_silent", "failpoint")


@dataclass(frozen=True)
class Line:
    """A request that the engine has served."""

    record: str
    worker: str
    attempt: int


def problems(run: Run) -> list[str]:
    """Everything that is wrong; empty is good."""
    return list(Checks(run).all())


@dataclass
class Checks:
    """The finished run, and what is asked about it."""

    run: Run

    @cached_property
    def log(self) -> list[audit.Entry]:
        return audit.entries(self.run.ledger)

    @cached_property
    def leases(self) -> list[LeaseSpan]:
        return audit.leases(self.log)

    @cached_property
    def lines(self) -> list[Line]:
        if not self.run.requests_log.is_file():
            return []
        found = map(json.loads, self.run.requests_log.read_text().splitlines())
        return [Line(one["record_id"], one["worker"], one["attempt"]) for one in found]

    @cached_property
    def outcomes(self) -> dict[str, Any]:
        return {row.record_id: row for row in self._rows(outcomes)}

    @cached_property
    def failures(self) -> list[Any]:
        return self._rows(failures)

    def _rows(self, table: sa.Table) -> list[Any]:
        with self.run.ledger.database.read() as connection:
            return list(connection.execute(sa.select(table).where(table.c.job_version == self.run.version)))

    def shard_of(self, record: str) -> int:
        return int(record.removeprefix("R-")) // self.run.history.shape.shard_size

    def all(self) -> Iterator[str]:
        yield from self.run.broken
        if not self.run.polls:
            yield "the invariants were never asked while it ran"
        yield from audit.written_out_of_turn(self.log)
        try:
            invariants.check(self.run.ledger, self.run.version, objects=self.run.deployment.objects)
        except AssertionError as error:
            yield str(error)
        yield from self.wrong_outcomes()
        yield from self.wrong_charges()
        yield from self.wrong_requests()
        yield from processes.wrong_ends(self.run, self.lines_by_worker)

    # --- outcomes ----------------------------------------------------------------------------------

    def wrong_outcomes(self) -> Iterator[str]:
        """Each record has the answer that belongs to it, or is given up for what it does."""
        history = self.run.history
        version = self.run.deployment.version(self.run.ledger.plans.get(self.run.version))
        answers = AnswerMaker(output_model(self.run.deployment, version).model_json_schema())
        for number in range(history.shape.records):
            record = record_id(number)
            row = self.outcomes.get(record)
            if row is None:
                yield f"{record} has no outcome"
                continue
            reasons = {"empty_input"} if number in history.empty else self.reasons_for(record)
            if row.kind == "result" and reasons:
                yield f"{record} has a result and should have none: {history.script.get(record)}"
            elif row.kind == "result" and row.payload != answers.answer(record):
                yield f"{record} has the answer of another record: {row.payload}"
            elif row.kind == "dead_letter" and row.reason not in reasons and not self.was_charged_alone(record):
                yield f"{record} is given up for {row.reason} ({row.error}), expected {reasons or 'a result'}"
        yield from self.wrong_files()

    def wrong_files(self) -> Iterator[str]:
        """The sealed rows are the stored results, word for word."""
        for row in self.run.ledger.progress.shards(self.run.version, state="completed"):
            for sealed in pq.read_table(self.run.deployment.objects.path(str(row.sealed_key))).to_pylist():
                stored = self.outcomes[sealed["record_id"]]
                if stored.kind != "result" or json.loads(stored.payload)["summary"] != sealed["summary"]:
                    yield f"{row.sealed_key} has another row for {sealed['record_id']} than the ledger"

    def reasons_for(self, record: str) -> set[str]:
        does = self.run.history.script.get(record, {})
        return set().union(*(_REASONS.get(name, set()) for name in does))

    def was_charged_alone(self, record: str) -> bool:
        """All its attempts were charged as if it had killed an engine; whether rightly, `wrong_charges` asks."""
        charges = [row for row in self.failures if row.record_id == record]
        return len(charges) == ATTEMPTS_MAX and any(row.reason == "engine_killer" for row in charges)

    # --- attempts ----------------------------------------------------------------------------------

    def wrong_charges(self) -> Iterator[str]:
        """No attempt is charged for an interruption, and none twice."""
        history = self.run.history
        engine_kills = sum(fault.kind == "engine_killed" for fault in self.run.fired)
        alone_in_engine: Counter[str] = Counter()
        for row in self.failures:
            record, told = row.record_id, f"{row.record_id} is charged attempt {row.attempt} for {row.reason}"
            does = history.script.get(record, {})
            allowed = self.reasons_for(record)
            if row.attempt <= does.get("fail_attempts", 0):
                allowed = allowed | {"engine_error"}
            if row.reason in allowed:
                continue
            if row.reason != "engine_killer":
                yield f"{told} ({row.error}); it does {does or 'nothing wrong'}"
            elif "when the worker died" in row.error or "last lost with it" in row.error:
                if not self.stood_alone(row):
                    yield f"{told} ({row.error}), but it was not alone on trial under a lease that was lost"
            else:
                alone_in_engine[record] += 1
        if alone_in_engine.total() > engine_kills:
            yield f"{dict(alone_in_engine)} charged for {engine_kills} engines that were killed"
        attempts: dict[str, list[int]] = defaultdict(list)
        for row in self.failures:
            attempts[row.record_id].append(row.attempt)
        for record, numbers in attempts.items():
            if sorted(numbers) != list(range(1, len(numbers) + 1)) or len(numbers) > ATTEMPTS_MAX:
                yield f"{record} has the attempts {sorted(numbers)}"

    def stood_alone(self, charge: Any) -> bool:
        """The last that was written down before this lease: the record, alone, was going into the engine."""
        before = [one for one in self.leases if one.shard == charge.shard and one.epoch < charge.epoch]
        if not before or max(before, key=lambda one: one.epoch).end != "lost":
            return False
        trials = [trial for one in before for trial in one.running]
        _, groups, running = max(trials, default=(0, [[]], False))
        return running and groups[0] == [charge.record_id]

    # --- requests ----------------------------------------------------------------------------------

    @cached_property
    def lines_by_worker(self) -> dict[str, list[Line]]:
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            found[line.worker].append(line)
        return found

    @cached_property
    def kept(self) -> set[tuple[str, str, int]]:
        """(worker, record, attempt) of all answers that are in the ledger, as results or as failed attempts."""
        results = {(row.worker, row.record_id, row.attempt) for row in self.outcomes.values() if row.kind == "result"}
        failed = {(row.worker, row.record_id, row.attempt) for row in self.failures if row.reason in _ANSWERED}
        return results | failed

    @property
    def requests_in_vain(self) -> int:
        """Requests that were answered and are not in the ledger."""
        return sum(len(lines) for lines in self.in_vain.values())

    @cached_property
    def in_vain(self) -> dict[tuple[str, int], list[Line]]:
        """By worker and shard: answers that nobody has stored."""
        found: dict[tuple[str, int], list[Line]] = defaultdict(list)
        left = Counter(self.kept)
        for line in self.lines:
            if self.is_misbehaving(line.record):
                continue
            key = (line.worker, line.record, line.attempt)
            if left[key]:
                left[key] -= 1
            else:
                found[line.worker, self.shard_of(line.record)].append(line)
        return found

    def is_misbehaving(self, record: str) -> bool:
        return any(name in self.run.history.script.get(record, {}) for name in _NOT_ANSWERED)

    def wrong_requests(self) -> Iterator[str]:
        """Every request in vain is explained by a lease that was lost, and there are not too many of them."""
        shape = self.run.history.shape
        served = Counter((line.worker, line.record, line.attempt) for line in self.lines)
        if from_nowhere := sorted(self.kept - set(served)):
            yield f"stored, but no engine has answered it: {from_nowhere[:5]}"
        lost: Counter[tuple[str, int]] = Counter()
        for lease in self.leases:
            lost[lease.owner, lease.shard] += lease.end in ("lost", "open")
        store_is_well = not self.run.history.has(*_STORE_FAULTS)
        rate_per_s = shape.window / shape.delay_s
        healthy = shape.flush_rows + shape.window + int(rate_per_s * (shape.flush_s + _PUT_S))
        for (worker, shard), lines in self.in_vain.items():
            failing = sum(self.shard_of(record) == shard for record in self.run.history.script)
            most = shape.shard_size + failing * (ATTEMPTS_MAX - 1)
            bound = lost[worker, shard] * min(most, healthy if store_is_well else most)
            if len(lines) > bound:
                yield (
                    f"{worker} has served {len(lines)} requests of shard {shard} in vain, at most {bound} are explained "
                    f"by {lost[worker, shard]} lost leases: {[line.record for line in lines]}"
                )
        yield from self.wrong_order()
        deaths = sum(life.status != 0 for life in self.run.lives) + len(self.run.fired)
        for record in self.run.history.having("kills_engine") | self.run.history.having("kills_worker"):
            times = sum(line.record == record for line in self.lines)
            # By halves until it stands alone, and three attempts; every interruption may begin that anew.
            bound = (shape.window.bit_length() + ATTEMPTS_MAX + 2) * (1 + deaths)
            if times > bound:
                yield f"{record} has killed {times} times, at most {bound} are needed to find it"

    def wrong_order(self) -> Iterator[str]:
        """What a lease loses is the end of what it was answered: nothing before an answer that is stored."""
        once = Counter((lease.owner, lease.shard) for lease in self.leases)
        for worker, lines in self.lines_by_worker.items():
            gaps: dict[int, Line] = {}
            for line in lines:
                shard = self.shard_of(line.record)
                if once[worker, shard] != 1 or self.is_misbehaving(line.record):
                    continue
                if (line.worker, line.record, line.attempt) not in self.kept:
                    gaps.setdefault(shard, line)
                elif shard in gaps:
                    yield f"{worker} has stored {line} and not {gaps[shard]}, which was answered before"
                    gaps.pop(shard)
