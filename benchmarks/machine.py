"""What a table of speeds was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("dspark-sim", "numba", "numpy", "pandas", "pyarrow", "simpy")


def machine() -> dict[str, str]:
    """Return processor, cores, memory, system and versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": str(cores),
        "memory": first_value("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def first_value(path: str, key: str) -> str:
    """Return the first value of a key in a file of the kernel's, "" where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")
