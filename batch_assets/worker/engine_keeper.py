"""Starts the engine, replaces it within bounds, and shuts it down, whatever it does."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from batch_assets.engine.protocol import Engine, EngineInfo
from batch_assets.errors import EngineUnavailable
from batch_assets.worker.orphans import EngineProcesses, end_processes
from batch_assets.worker.report import WorkerLimits, WorkerReport

SHUTDOWN_S = 30.0
SHUTDOWN_GRACE_S = 15.0  # for an engine that takes its deadline not too literally


@dataclass(frozen=True)
class EngineKeeper:
    """One engine over its restarts. Every replacement is counted in the report."""

    engine: Engine
    processes: EngineProcesses
    owner: str
    limits: WorkerLimits
    report: WorkerReport

    def start(self) -> EngineInfo:
        """Load the model, after ending what dead workers have left on this machine.

        Raises EngineUnavailable when it is not ready by its deadline.
        """
        self.report.orphans_ended = self.processes.end_orphans()
        self.report.engine = self._start()
        return self.report.engine

    def replace(self, cause: str) -> None:
        """A new engine in the place of this one.

        Raises EngineUnavailable when there were too many already, or when this one does not end.
        """
        if self.is_worn_out:
            raise EngineUnavailable(
                f"The engine died {self.report.engine_restarts} times in this worker (last: {cause}). The shards were "
                "handed back. Look at the engine's log, or raise engine.restarts_max in defs.yaml."
            )
        self.shut_down()
        if self.report.engine_stuck:
            raise EngineUnavailable(
                "The engine does not shut down; its processes were killed, and the shards handed back."
            )
        self._start()

    @property
    def is_worn_out(self) -> bool:
        """It has died more often than allowed."""
        return self.report.engine_restarts > self.limits.restarts_max

    def shut_down(self) -> None:
        """Bounded, whatever the engine does: a driver call that hangs must not keep this process alive."""
        processes = self.engine.processes()
        stopping = threading.Thread(target=self.engine.shutdown, args=(SHUTDOWN_S,), name="shutdown", daemon=True)
        stopping.start()
        stopping.join(SHUTDOWN_S + SHUTDOWN_GRACE_S)
        if stopping.is_alive():
            self.report.engine_stuck = True
            end_processes(processes)
        self.processes.forget(self.owner)

    def _start(self) -> EngineInfo:
        info = self.engine.start(self.limits.start_deadline_s)
        self.processes.note(self.owner, self.engine.processes())
        return info
