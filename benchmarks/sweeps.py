"""How long a sweep takes with one worker and with two."""

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
    """Return wall seconds of a sweep over policies, concurrencies and seeds."""
    size = [4, 4, 1, 500] if quick else [10, 16, 3, 2_000]
    policies, loads, seeds, requests = size
    name = f"sweep, {policies} policies x {loads} loads x {seeds} seeds x {requests:,} requests"
    numbers = [str(number) for number in size]
    walls = [answer(["-m", "benchmarks.sweeps", str(jobs), *numbers]) for jobs in (1, 2)]
    return [
        Row(name, "1 worker, wall", walls[0], "s"),
        Row(name, "2 workers, wall", walls[1], "s"),
        Row(name, "2 workers over 1", walls[0] / walls[1], "x", more=True),
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
