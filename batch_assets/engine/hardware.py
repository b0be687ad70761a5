"""What this machine computes with, found without importing torch or vLLM."""

from __future__ import annotations

import re
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_ACCELERATOR_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))  # NVIDIA, AMD

# Processors that multiply bfloat16 natively. Without these instructions bfloat16 is emulated and four
# times slower than float32.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


def has_accelerator() -> bool:
    """Whether the driver of a GPU is loaded and visible to this process."""
    return any(device.exists() for device in _ACCELERATOR_DEVICES)


def processor_flags(cpu_info: str) -> frozenset[str]:
    """Instruction-set flags of the first processor in the text of /proc/cpuinfo (x86 and ARM)."""
    line = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpu_info, re.MULTILINE)
    return frozenset(line.group(1).split()) if line else frozenset()


def processor_dtype() -> str:
    """What dtype "auto" means here: "bfloat16" where it is native, else "float32"."""
    if has_accelerator():
        return "bfloat16"
    try:
        flags = processor_flags(_CPU_INFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return "float32"
    return "bfloat16" if flags & _BFLOAT16_FLAGS else "float32"
