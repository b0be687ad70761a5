"""Deadlines, judged by what the worker has seen: nobody pays for a worker that was frozen."""

from __future__ import annotations

import time

import pytest

from batch_assets.errors import EngineDied
from batch_assets.worker.records import Prepared
from batch_assets.worker.report import WorkerLimits
from batch_assets.worker.watchdog import Watchdog
from batch_assets.worker.window import Window

LIMITS = WorkerLimits(
    lease_s=600, renew_every_s=30, start_deadline_s=60, progress_deadline_s=50, record_deadline_s=100, restarts_max=5,
    recoveries_max=5, drain_s=20,
)  # fmt: skip


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A monotonic clock that the test moves."""
    moment = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    return moment


def window_of(count: int, now: float) -> Window:
    window = Window(8)
    window.entered([Prepared(shard=0, record_id=str(n), attempt=1, prompt_token_ids=(1,)) for n in range(count)], now)
    return window


def test_a_worker_frozen_after_it_has_asked_blames_nobody(now: list[float]) -> None:
    """The answers may have come while it slept: it asks again before it judges."""
    watchdog, window = Watchdog(LIMITS), window_of(2, now[0])
    watchdog.looks()
    now[0] += 5000
    assert watchdog.overdue(window) == []
    watchdog.check_progress(window)
    watchdog.looks()
    assert len(watchdog.overdue(window)) == 2


def test_silence_is_the_engine_s_fault_only_with_several_in_flight(now: list[float]) -> None:
    """One slow record has a deadline of its own."""
    watchdog, one, two = Watchdog(LIMITS), window_of(1, now[0]), window_of(2, now[0])
    now[0] += 60
    watchdog.looks()
    watchdog.check_progress(one)
    with pytest.raises(EngineDied, match="60 s with 2 records"):
        watchdog.check_progress(two)
    watchdog.answered()
    watchdog.check_progress(two)


def test_who_may_have_silenced_the_engine(now: list[float]) -> None:
    """A record that timed out in an engine that said nothing since: others do not go in with it."""
    watchdog, window = Watchdog(LIMITS), window_of(2, now[0] + 1)
    silent, other = window.overdue(now[0] + 200, 100)
    watchdog.timed_out(silent)
    assert watchdog.suspects(silent.prepared)
    assert watchdog.distrusts_engine_for([silent.prepared, other.prepared])
    assert not watchdog.distrusts_engine_for([silent.prepared])
    watchdog.answered()
    assert not watchdog.distrusts_engine_for([other.prepared])
