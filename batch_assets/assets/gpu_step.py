"""One worker inside a Dagster step: it stops when told to, and reports each shard once it is sealed.

A step process is told to stop by signals. Dagster's own answer is an exception in the middle of
whatever runs; here the first signal only sets a flag, so that the worker stores what is in the
engine and hands its shards back. A second signal interrupts at once.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from batch_assets.assets.failures import as_dagster_failures
from batch_assets.assets.opened import opened
from batch_assets.assets.sealed_shards import sealed_event
from batch_assets.errors import StoreError
from batch_assets.operations.work import work
from batch_assets.settings import Settings
from batch_assets.worker.events import ShardSealed
from batch_assets.worker.report import ShardStats, WorkerReport

# Each preemption or crash of a worker costs one retry, and there may be many in a run of hours.
RETRIES_MAX = 50
RETRY_DELAY_S = 1.0
UNEXPECTED_RETRIES_MAX = 3  # an error that we have no word for may pass, or be a mistake of ours
ASK_DAGSTER_EVERY_S = 10.0  # how soon a worker notices that its run was terminated in the UI
_STOPPED_TEXT = (
    "The run was told to stop. Its results are stored and its shards handed back; press Re-execute to go on."
)
_STOPPED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)


def run_worker(
    context: dg.OpExecutionContext, settings: Settings, *, key: dg.AssetKey, job_version: str, wanted: range
) -> None:
    """Work on the wanted shards until none is left.

    Raises dg.RetryRequested when this process alone was told to go, and dg.Failure for what a retry
    cannot mend, the end of the whole run among them. (Dagster would answer an interruption with the
    step's retry policy: in this process, work would simply begin again.)
    """

    def on_sealed(event: ShardSealed, stats: ShardStats) -> None:
        context.log_event(sealed_event(key, deployment.objects, event, stats))

    with opened(settings) as deployment, stop_notices() as notices, _bounded(context), as_dagster_failures():
        registered = deployment.ledger.plans.get(job_version)
        should_stop = StopRule(context, notices)
        report = work(deployment, registered, wanted=wanted, on_sealed=on_sealed, should_stop=should_stop)
    _log_report(context, report)
    if report.drained:
        if should_stop.run_is_ending(settings):
            raise dg.Failure(description=_STOPPED_TEXT, allow_retries=False)
        raise dg.RetryRequested(max_retries=RETRIES_MAX, seconds_to_wait=RETRY_DELAY_S)


@contextmanager
def _bounded(context: dg.OpExecutionContext) -> Iterator[None]:
    """Keep the many retries for lost processes and stores: each loads the model anew."""
    try:
        yield
    except (dg.Failure, StoreError):
        raise
    except Exception as error:
        if context.retry_number < UNEXPECTED_RETRIES_MAX:
            raise
        text = f"The worker failed {UNEXPECTED_RETRIES_MAX + 1} times, last with {type(error).__name__}: {error}"
        raise dg.Failure(description=text, allow_retries=False) from error


@dataclass
class Notices:
    """Signals that have arrived."""

    terminate: bool = False  # SIGTERM: this process is to go; the scheduler may take just this one
    interrupt: bool = False  # SIGINT: the run ends; Dagster's executors send it to each step

    @property
    def any(self) -> bool:
        return self.terminate or self.interrupt


@contextmanager
def stop_notices() -> Iterator[Notices]:
    """Collect SIGTERM and SIGINT instead of being interrupted by them."""
    notices = Notices()
    if threading.current_thread() is not threading.main_thread():
        yield notices  # only the main thread may set handlers; Dagster's own stay
        return

    def note(number: int, _frame: object) -> None:
        if notices.any:
            raise dg.Failure(description="The run was told to stop twice, and did so at once.", allow_retries=False)
        notices.terminate = number == signal.SIGTERM
        notices.interrupt = number == signal.SIGINT

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield notices
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopRule:
    """Whether the worker is to hand back: asked several times a second, so it must be cheap."""

    def __init__(self, context: dg.OpExecutionContext, notices: Notices) -> None:
        self._context = context
        self._notices = notices
        self._ask_at = time.monotonic() + ASK_DAGSTER_EVERY_S
        self._run_stopped = False

    def __call__(self) -> bool:
        if not self._notices.any and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_DAGSTER_EVERY_S
            self._run_stopped = self._is_stopped_in_dagster()
        return self._notices.any or self._run_stopped or _is_orphan()

    def run_is_ending(self, settings: Settings) -> bool:
        """Whether the whole run ends, not only this step's process."""
        alone = settings.executor == "in_process"
        return alone or self._notices.interrupt or _is_orphan() or self._is_stopped_in_dagster()

    def _is_stopped_in_dagster(self) -> bool:
        run = self._context.instance.get_run_by_id(self._context.run_id)
        return run is None or run.status in _STOPPED


def _is_orphan() -> bool:
    """Whether the process that started this step has died: nobody collects the step any more."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _log_report(context: dg.OpExecutionContext, report: WorkerReport) -> None:
    if report.engine is None:
        context.log.info("No shard was left for this worker; no engine was started.")
        return
    context.log.info(
        f"{'Drained' if report.drained else 'Done'} on {report.engine.kind} {report.engine.version} "
        f"({report.engine.device}): {report.shards_completed:,} shards, {report.results:,} results, "
        f"{report.dead_letters:,} dead letters, {report.duplicates_discarded:,} duplicates discarded, "
        f"{report.engine_restarts:,} engine restarts, {report.leases_lost:,} leases lost, "
        f"{report.records_aborted:,} records aborted"
    )
