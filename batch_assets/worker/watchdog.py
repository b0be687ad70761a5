"""Notices records that stay in the engine for too long, and engines that answer nothing at all."""

from __future__ import annotations

import time
from collections.abc import Collection

from batch_assets.errors import EngineDied
from batch_assets.worker.records import Prepared
from batch_assets.worker.report import WorkerLimits
from batch_assets.worker.window import InFlight, Window


class Watchdog:
    """Looks at one engine's answers."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._looked_at = time.monotonic()
        self.answered()

    def looks(self) -> None:
        """The engine is about to be asked for answers. Deadlines are judged as of this moment.

        A worker that was frozen after it had asked would otherwise blame records whose answers are there.
        """
        self._looked_at = time.monotonic()

    def answered(self) -> None:
        """Something came out of the engine, or it is a new one."""
        self._answered_at = time.monotonic()
        self._silent: set[str] = set()  # timed out, and nothing has come out since they went in

    def check_progress(self, window: Window) -> None:
        """Raise EngineDied when several records are in flight and nothing has come out for too long."""
        now = self._looked_at
        silent_s = now - max(self._answered_at, window.oldest_submission(default=now))
        if len(window) > 1 and silent_s > self._limits.progress_deadline_s:
            raise EngineDied(f"no completion for {silent_s:.0f} s with {len(window)} records in flight")

    def overdue(self, window: Window) -> list[InFlight]:
        """Records that are in the engine for longer than one record may take."""
        return window.overdue(self._looked_at, self._limits.record_deadline_s)

    def timed_out(self, one: InFlight) -> None:
        """This record was given up; if the engine has said nothing since, it may be the engine that hangs."""
        if self._answered_at <= one.submitted_at:
            self._silent.add(one.prepared.key)

    def suspects(self, prepared: Prepared) -> bool:
        """Whether this record may have silenced the engine."""
        return prepared.key in self._silent

    def distrusts_engine_for(self, batch: Collection[Prepared]) -> bool:
        """Whether the engine may hang, and others than the records that may have done it would go in."""
        return bool(self._silent) and not self._silent.issuperset(one.key for one in batch)
