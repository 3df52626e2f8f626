"""The kernel's time per step by running requests and γ, and what all else adds to it."""

from __future__ import annotations

from benchmarks.bare import ready, run_through
from benchmarks.measure import Row, least
from benchmarks.workloads import chat, serving
from dspark_sim.simulator import simulate
from dspark_sim.simulator import state as s

RUNNING = (1, 16, 64, 256)
DRAFT_LENGTHS = (3, 7)
POLICIES = ("fixed", "dspark-async")


def measure(quick: bool) -> list[Row]:
    """Return µs per step, and `simulate` over the bare kernel."""
    rows = []
    for policy in POLICIES:
        for gamma in DRAFT_LENGTHS:
            name = f"fixed:{gamma}" if policy == "fixed" else policy
            for running in RUNNING:
                value = _microseconds(name, gamma, running, 20_000 if quick else 200_000)
                rows.append(Row(f"step, {policy}, γ = {gamma}", f"R = {running}", value, "µs"))
    return [*rows, *_overhead("dspark-async", quick), *_overhead("fixed:3", quick)]


def _microseconds(policy: str, gamma: int, running: int, blocks: int) -> float:
    """Return the time of a step of the bare kernel in a closed loop, over about `blocks` drafts."""
    requests = max(2 * running, blocks // 100)
    changes = {"concurrency": running, "prefill": {"mode": "none"}, "num_speculative_tokens": gamma}
    scenario = serving("W4", policy, requests, **changes)

    def once() -> float:
        replica = ready(scenario)
        seconds = least(lambda: run_through(replica), times=1)
        return seconds / int(replica.state.counters[s.C_STEPS]) * 1e6

    return min(once() for _ in range(3))


def _overhead(policy: str, quick: bool) -> list[Row]:
    """Return CPU time of `simulate` with request records over that of its steps alone."""
    scenario = chat(policy, 10_000 if quick else 100_000)
    replicas = [ready(scenario) for _ in range(3)]
    bare = min(least(lambda r=replica: run_through(r), times=1) for replica in replicas)
    whole = least(lambda: simulate(scenario))
    group = f"whole call over bare kernel, {scenario.requests:,} chat requests"
    return [Row(group, policy, whole / bare, "x")]
