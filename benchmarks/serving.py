"""Requests and tokens per second of the three workloads, whole calls of `simulate`."""

from __future__ import annotations

from benchmarks.measure import Row, least
from benchmarks.workloads import LOADS, serving
from dspark_sim.simulator import simulate

POLICIES = ("none", "fixed:3", "dspark", "dspark-async", "vllm")


def measure(quick: bool) -> list[Row]:
    """Return simulated requests/s, tokens/s and µs per step by workload and policy."""
    requests, rows = 1_000 if quick else 10_000, []
    for load in LOADS:
        for policy in POLICIES:
            scenario = serving(load, policy, requests)
            summary = simulate(scenario).summary
            seconds = least(lambda scenario=scenario: simulate(scenario))
            group = f"{load}, {requests:,} requests, {policy}"
            tokens = summary["total_output_tokens"] / seconds
            rows += [
                Row(group, "requests", requests / seconds, "1/s", more=True),
                Row(group, "output tokens", tokens / 1e6, "M/s", more=True),
                Row(group, "time per step", seconds / summary["steps"] * 1e6, "µs"),
            ]
    return rows
