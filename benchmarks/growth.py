"""How time and memory grow with the number of requests, and what a long queue costs."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import first_value
from benchmarks.measure import Row, answer, least
from benchmarks.workloads import chat
from dspark_sim.simulator import simulate

POLICIES = ("fixed:3", "dspark-async")


def measure(quick: bool) -> list[Row]:
    """Return CPU time, peak memory and the log-log slope of time over requests."""
    sizes, rows = ([2_000, 20_000] if quick else [10_000, 100_000, 1_000_000]), []
    for policy in POLICIES:
        runs = [answer(["-m", "benchmarks.growth", policy, str(size)]) for size in sizes]
        group = f"chat at 80 % load, {policy}"
        for size, run in zip(sizes, runs, strict=True):
            rows += [
                Row(group, f"{size:,} requests, CPU", run["cpu_s"], "s"),
                Row(group, f"{size:,} requests, wall", run["wall_s"], "s"),
                Row(group, f"{size:,} requests, peak memory", run["peak_mib"], "MiB"),
            ]
        slope = np.polyfit(np.log(sizes), np.log([run["cpu_s"] for run in runs]), 1)[0]
        rows.append(Row(group, "log-log slope of CPU time", float(slope), ""))
    return [*rows, *_queue(5_000 if quick else 100_000)]


def _queue(waiting: int) -> list[Row]:
    """Return the time of a step with that many waiting, over that with none."""
    behind = _per_step(chat("dspark-async", waiting, request_rate=float("inf")))
    alone = _per_step(chat("dspark-async", waiting, concurrency=256))
    what = f"{waiting:,} waiting over none, dspark-async"
    return [Row("time per step, queue", what, behind / alone, "x")]


def _per_step(scenario: Any) -> float:
    results = []
    seconds = least(lambda: results.append(simulate(scenario).summary["steps"]), times=2)
    return seconds / float(results[0])


def _one(policy: str, requests: int) -> dict[str, float]:
    """Simulate and write one result with request records; kernels are loaded beforehand."""
    simulate(chat(policy, 100))
    scenario = chat(policy, requests)
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        simulate(scenario).save(Path(folder) / "run")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_s": cpu, "wall_s": wall, "peak_mib": _peak_mib()}


def _peak_mib() -> float:
    """Return the most memory that this process has held, not what it was forked from (Linux)."""
    return float(first_value("/proc/self/status", "VmHWM").split()[0]) / 1024


if __name__ == "__main__":
    print(json.dumps(_one(sys.argv[1], int(sys.argv[2]))))
