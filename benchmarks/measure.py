"""What every measurement shares: a row of the table, CPU time, a program in a process of its own.

Times are CPU seconds of one thread, the least of some repetitions, unless a row says "wall": other
programs on the machine then disturb them little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One measured number: its group, what it is, its unit; `more` if larger is better."""

    group: str
    what: str
    value: float
    unit: str
    more: bool = False

    @property
    def key(self) -> str:
        """What the row is compared by."""
        return f"{self.group}: {self.what}"


def least(call: Callable[[], Any], times: int = 3) -> float:
    """Return the CPU seconds of a call, the least of some times."""
    return min(_seconds(call) for _ in range(times))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def program(
    arguments: Sequence[str], python: str = sys.executable, cwd: Path = ROOT
) -> tuple[str, float, float]:
    """Run Python in a process of its own; return what it prints, its CPU and its wall seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [python, *arguments], check=True, capture_output=True, text=True, cwd=cwd, env=environment
    )
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    return done.stdout, cpu - before.children_user - before.children_system, wall


def answer(arguments: Sequence[str], python: str = sys.executable, cwd: Path = ROOT) -> Any:
    """Run Python in a process of its own; return the JSON of the last line it prints."""
    return json.loads(program(arguments, python, cwd)[0].splitlines()[-1])
