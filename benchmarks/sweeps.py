"""How long a sweep takes in one process and in two."""

from __future__ import annotations

import json
import sys
import time

from benchmarks.measure import Row, answer
from benchmarks.workloads import PROFILE
from dspark_sim.config import Scenario
from dspark_sim.study import sweep

POLICIES = (
    "none", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "threshold:0.6",
    "dspark", "dspark-async", "vllm", "oracle",
)  # fmt: skip
CONCURRENCY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def measure(quick: bool) -> list[Row]:
    """Return wall seconds of sweeps over policies, concurrencies and seeds."""
    if quick:
        return _rows(4, 4, 1, 500, times=1)
    return [*_rows(10, 16, 3, 2_000, times=5), *_rows(10, 16, 3, 8_000, times=2)]


def _rows(policies: int, loads: int, seeds: int, requests: int, times: int) -> list[Row]:
    name = f"sweep, {policies} policies x {loads} loads x {seeds} seeds x {requests:,} requests"
    numbers = [str(number) for number in (policies, loads, seeds, requests)]
    pairs = [
        [answer(["-m", "benchmarks.sweeps", jobs, *numbers]) for jobs in ("1", "2")]
        for _ in range(times)
    ]
    one, two = map(min, zip(*pairs, strict=True))
    return [
        Row(name, "1 process, wall", one, "s"),
        Row(name, "2 processes, wall", two, "s"),
        Row(name, "2 processes over 1", one / two, "x", more=True),
    ]


def _wall(jobs: int, policies: int, loads: int, seeds: int, requests: int) -> float:
    scenario = Scenario(
        trace="synth:fixed,in=512,out=256", profile=PROFILE, requests=requests, record="requests"
    )
    concurrency = CONCURRENCY[:: len(CONCURRENCY) // loads]
    start = time.perf_counter()
    sweep(scenario, POLICIES[-policies:], concurrency, seeds=range(seeds), jobs=jobs)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(_wall(*(int(text) for text in sys.argv[1:]))))
