"""The machine that is timed: what it is, how fast it copies and multiplies, what it can hold."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspark_sim.core import UserError

if TYPE_CHECKING:
    from dspark_sim.model.timing.clock import Clock

_GPU_KEYS = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"


def find_device(name: str) -> torch.device:
    """Return the device, or say why it is not there."""
    if name not in ("cpu", "cuda"):
        raise UserError(f"the device must be cpu or cuda, not '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda or "none"
        raise UserError(
            f"no CUDA device is to be seen (torch {torch.__version__}, built for CUDA {built})"
        )
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def describe(device: torch.device) -> dict[str, Any]:
    """Return the device's name and the versions of what runs on it."""
    about: dict[str, Any] = {
        "device": device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        about |= {
            "name": found.name,
            "memory_gib": round(found.total_memory / 2**30, 1),
            "multiprocessors": found.multi_processor_count,
            "capability": f"{found.major}.{found.minor}",
            "cuda": torch.version.cuda,
            "driver": gpu_state().get("driver_version", "not stated"),
        }
    else:
        about |= {
            "name": _processor(),
            "memory_gib": round(_memory() / 2**30, 1),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
    return about


def gpu_state() -> dict[str, str]:
    """Return driver, clocks, temperature and power as nvidia-smi reads them; nothing without it."""
    command = ["nvidia-smi", f"--query-gpu={_GPU_KEYS}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = (value.strip() for value in answer.stdout.splitlines()[0].split(","))
    return dict(zip(_GPU_KEYS.split(","), values, strict=False))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes(device: torch.device) -> int:
    """Return how much memory can be taken now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        return _memory() // 2


def ceilings(clock: Clock, dtype: torch.dtype, small: bool) -> dict[str, float]:
    """Measure what nothing on this machine exceeds: bandwidth (GB/s), matrix rate (TFLOP/s).

    A copy counts bytes read and written, a sum bytes read; the matrix product is a large square
    one of random numbers of the model's kind.
    """
    gpu = clock.on_gpu
    count = (2**28 if small else 2**30) if gpu else (2**25 if small else 2**26)
    copy_ms, read_ms = _memory_ms(clock, count)
    if gpu:
        torch.cuda.empty_cache()
    size = (4096 if small else 8192) if gpu else (768 if small else 1536)
    a, b = (torch.randn(size, size, device=clock.device, dtype=dtype) for _ in range(2))
    matmul_ms = clock.best(lambda: a @ b)
    return {
        "copy_gb_s": 8 * count / copy_ms / 1e6,
        "read_gb_s": 4 * count / read_ms / 1e6,
        "matmul_tflop_s": 2 * size**3 / matmul_ms / 1e9,
    }


def _memory_ms(clock: Clock, count: int) -> tuple[float, float]:
    """Return how long a copy and a sum of so many numbers of 4 bytes take; gives them back."""
    source = torch.rand(count, device=clock.device)
    target = torch.empty_like(source)
    return clock.best(lambda: target.copy_(source)), clock.best(source.sum)


def roofline_ms(moved: float, work: float, limits: dict[str, float]) -> float:
    """Return the least time (ms) to move so many bytes and do so many operations at once."""
    bandwidth = max(limits["copy_gb_s"], limits["read_gb_s"])
    return max(moved / bandwidth / 1e6, work / limits["matmul_tflop_s"] / 1e9)
