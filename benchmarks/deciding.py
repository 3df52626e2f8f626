"""How long a policy takes to decide on one step, inside the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from benchmarks.bare import ready
from benchmarks.measure import Row, least
from benchmarks.workloads import serving
from dspark_sim.simulator.kernels import apply_rule, begin_step, draft, finish_step, plan_drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.simulator.state import Rule, State

    Floats = NDArray[np.float64]

POLICIES = ("dspark", "dspark-async", "vllm")
RUNNING = (16, 64, 256, 1_024)
MOMENTS = 16


def measure(quick: bool) -> list[Row]:
    """Return µs per decision by policy and running requests, γ = 7."""
    return [
        Row(f"decision, {policy}, γ = 7", f"R = {running:,}", _microseconds(policy, running), "µs")
        for policy in POLICIES
        for running in (RUNNING[:3] if quick else RUNNING)
    ]


def _microseconds(policy: str, running: int) -> float:
    """Return the time of a decision, over the confidences of several steps of a run."""
    limits = {"profile_set": {"max_num_seqs": running}, "extend": True}
    replica = ready(
        serving("W4", policy, 2 * running, concurrency=running, prefill={"mode": "none"}, **limits)
    )
    engine, state, rule = replica.engine, replica.state, replica.rule
    moments = []
    for _ in range(2 * MOMENTS):
        begin_step(engine, state)
        plan_drafts(engine, rule, state)
        draft(replica.acceptance, state, rule.want_confidence, rule.lag)
        moments.append((state.survival.ravel().copy(), state.stale.ravel().copy()))
        apply_rule(rule, state)
        finish_step(engine, state)
    begin_step(engine, state)
    plan_drafts(engine, rule, state)
    live, stale = (np.array(kind) for kind in zip(*moments[MOMENTS:], strict=True))
    times = max(200, 200_000 // running)
    _decide_often(rule, state, live, stale, 1)
    return least(lambda: _decide_often(rule, state, live, stale, times), times=5) / times * 1e6


@numba.njit
def _decide_often(rule: Rule, state: State, live: Floats, stale: Floats, times: int) -> None:
    for i in range(times):
        moment = i % len(live)
        state.survival.reshape(-1)[:] = live[moment]
        state.stale.reshape(-1)[:] = stale[moment]
        apply_rule(rule, state)
