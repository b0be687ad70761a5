"""No engine process outlives the worker that started it.

vLLM computes in a child process, and that child does not notice when its parent is killed with
SIGKILL: it keeps its memory, on a GPU all of it, and the next worker cannot start. vLLM calls the
functions registered under the entry point `vllm.general_plugins` in each of its processes (see
pyproject.toml); this one asks the kernel to kill the process when its parent is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

STARTER_VARIABLE = "BATCH_ASSETS_ENGINE_STARTER"  # pid of the worker; unset outside our workers

_PR_SET_PDEATHSIG = 1


def end_with_starter() -> None:
    """Tie this process to its parent. Does nothing in the worker itself and outside our workers."""
    starter = os.environ.get(STARTER_VARIABLE)
    if starter is None or starter == str(os.getpid()) or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not _is_alive(int(starter)):  # it was killed before the request above
        os._exit(1)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
