"""Who owns a lease, and whether an owner of this machine is still alive.

An owner is `host:boot:pid:start`. Boot id and process start time make a reused process id a
different owner, so "its process is gone" can be said for certain, on this machine only. A worker
that was killed here is then replaced at once instead of after its lease.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def machine() -> str:
    """This machine since its last boot, seen from this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return f"{socket.gethostname()}:unknown"
    return f"{socket.gethostname()}:{boot}-{namespace}"


def owner_name(pid: int | None = None) -> str:
    """The name under which a process holds leases."""
    process = os.getpid() if pid is None else pid
    return f"{machine()}:{process}:{start_time(process) or 0}"


def is_dead_local_owner(owner: str) -> bool:
    """True only when the owner was a process of this machine that certainly has ended."""
    place, _, rest = owner.rpartition(":")
    place, _, pid = place.rpartition(":")
    if place != machine() or place.endswith(":unknown") or not pid.isdigit():
        return False
    return start_time(int(pid)) != rest


def pid_of(owner: str) -> int | None:
    """The process id in an owner's name."""
    parts = owner.split(":")
    return int(parts[-2]) if len(parts) >= 2 and parts[-2].isdigit() else None


def start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
