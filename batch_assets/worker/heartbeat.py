"""Renews the worker's leases in the background, and knows how long they can be trusted.

Trust is measured from when a renewal was sent, on this process's monotonic clock: a worker that was
frozen finds its lease untrusted when it wakes, whatever its wall clock says.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from batch_assets.core.leases import Lease, trusted_until
from batch_assets.errors import Fenced, StoreError
from batch_assets.storage.leases import Leases


@dataclass
class _Held:
    lease: Lease
    trusted_until: float  # monotonic seconds
    lost: bool = False


class Heartbeat:
    """One renewing thread for all leases of a worker. Use as a context manager."""

    def __init__(self, leases: Leases, *, lease_s: float, renew_every_s: float) -> None:
        self._leases = leases
        self._lease_s = lease_s
        self._renew_every_s = renew_every_s
        self._held: dict[tuple[int, int], _Held] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)  # a renewal that hangs must not keep the worker from ending

    def hold(self, lease: Lease, *, claimed_at: float) -> None:
        """Start renewing; `claimed_at` is the monotonic time before the claim was sent."""
        held = _Held(lease, trusted_until(sent_at=claimed_at, lease_s=self._lease_s))
        with self._lock:
            self._held[lease.shard, lease.epoch] = held

    def drop(self, lease: Lease) -> None:
        """Stop renewing: the shard is completed, released or lost."""
        with self._lock:
            self._held.pop((lease.shard, lease.epoch), None)

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is being renewed here, and was not lost."""
        with self._lock:
            held = self._held.get((lease.shard, lease.epoch))
            return held is not None and not held.lost

    def lost(self) -> list[Lease]:
        """Leases that must not be worked on any more: refused, or not renewed for too long."""
        now = time.monotonic()
        with self._lock:
            return [held.lease for held in self._held.values() if held.lost or now > held.trusted_until]

    def _run(self) -> None:
        while not self._stop.wait(self._renew_every_s):
            with self._lock:
                current = list(self._held.values())
            for held in current:
                self._renew(held)

    def _renew(self, held: _Held) -> None:
        sent_at = time.monotonic()
        try:
            self._leases.renew(held.lease, lease_s=self._lease_s)
        except Fenced:
            held.lost = True
        except StoreError:
            return  # the lease may still be good; trust runs out by itself if the store stays away
        else:
            held.trusted_until = trusted_until(sent_at=sent_at, lease_s=self._lease_s)
