"""simulate(scenario): a pure function from a scenario to its result."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.acceptance import AcceptanceSource, load_acceptance
from dspark_sim.core import NS_PER_S, UserError
from dspark_sim.policies import KernelPolicy, Policy, load_policy, policy_draft_len
from dspark_sim.simulator import state as s
from dspark_sim.simulator.admission import issue, issue_all
from dspark_sim.simulator.engine import Replica, run
from dspark_sim.simulator.metrics import request_latencies, run_metrics, window_metrics
from dspark_sim.simulator.result import Result, to_json
from dspark_sim.throughput import CostTables, EngineProfile, load_profile
from dspark_sim.trace import Trace, load_trace

if TYPE_CHECKING:
    from dspark_sim.config import Belief, Scenario

_UNLIMITED_BLOCKS = 2**40
_PREFILL = {
    "none": s.PREFILL_NONE,
    "chunked": s.PREFILL_CHUNKED,
    "separate": s.PREFILL_SEPARATE,
}


@dataclass(frozen=True)
class Inputs:
    """The objects a scenario's names stand for; give some to `simulate` to use your own."""

    trace: Trace | None = None
    profile: EngineProfile | None = None
    acceptance: AcceptanceSource | None = None
    policy: Policy | None = None


def simulate(
    scenario: Scenario, inputs: Inputs | None = None, *, stepwise: bool = False
) -> Result:
    """Run a scenario and return its result.

    Two calls with the same scenario give the same bytes, whatever ran before.

    Parameters
    ----------
    scenario
    inputs
        Objects to use in place of the scenario's names.
    stepwise
        Take step by step even under a built-in policy (slower, same results).

    Raises
    ------
    UserError
        For a name, file or value that cannot be used, and for a request that can never fit.
    """
    given = inputs or Inputs()
    profile = given.profile or load_profile(scenario.profile, scenario.profile_set)
    trace = given.trace or load_scenario_trace(scenario)
    policy = given.policy or load_policy(scenario.policy, scenario.num_speculative_tokens)
    source = given.acceptance or load_acceptance(
        scenario.acceptance, scenario.num_speculative_tokens
    )
    gamma = policy_draft_len(policy, scenario.num_speculative_tokens)
    belief = scenario.belief
    acceptance = source.tables(
        trace.requests["category"].tolist(),
        gamma,
        belief.confidence_scale,
        belief.confidence_bias,
    )
    prompt = trace.requests["prompt_tokens"].to_numpy(np.int64)
    output = trace.requests["output_tokens"].to_numpy(np.int64)
    engine = _engine(scenario, profile, gamma, prompt, output)
    _check_fit(engine, trace, profile)
    state = s.new_state(engine, prompt, output, scenario.prefill.workers)
    if scenario.concurrency is None:
        issue_all(engine, state, trace.arrival_ns)
    else:
        for request in range(min(scenario.concurrency, len(trace))):
            issue(engine, state, request, 0)
    rule = _rule(policy, belief, profile, engine, scenario.extend)
    replica = Replica(engine, acceptance, rule, policy, state, stepwise)
    run(replica)
    return _result(scenario, replica, trace, profile, source)


def load_scenario_trace(scenario: Scenario) -> Trace:
    """Return the requests of a scenario with its load applied."""
    closed = scenario.concurrency is not None
    wanted = scenario.requests
    synthetic = scenario.trace.startswith("synth:")
    if wanted is None and (closed or synthetic):
        wanted = max(1000, 8 * (scenario.concurrency or 0))
    if synthetic:
        trace = load_trace(scenario.trace, wanted, scenario.seed)
    else:
        trace = load_trace(scenario.trace)
        if wanted is not None:
            trace = trace.repeated(wanted) if closed else trace.head(wanted)
    if scenario.request_rate is not None:
        trace = trace.with_arrivals("poisson", scenario.request_rate, scenario.seed)
    return trace.scaled(scenario.rate_scale) if scenario.rate_scale != 1.0 else trace


def _engine(
    scenario: Scenario,
    profile: EngineProfile,
    gamma: int,
    prompt: np.ndarray[Any, np.dtype[np.int64]],
    output: np.ndarray[Any, np.dtype[np.int64]],
) -> s.Engine:
    slots = min(profile.max_num_seqs, profile.max_num_batched_tokens // (1 + gamma), len(prompt))
    if scenario.concurrency is not None:
        slots = min(slots, scenario.concurrency)
    if slots == 0:
        raise UserError(
            f"profile '{profile.name}': max_num_batched_tokens = {profile.max_num_batched_tokens} "
            f"cannot hold one request with {gamma} draft tokens"
        )
    costs = profile.tables(gamma, slots, scenario.extend)
    kv_blocks = _UNLIMITED_BLOCKS
    if profile.kv_tokens is not None:
        kv_blocks = profile.kv_tokens // profile.block_size
    window = (s.NEVER, s.NEVER)
    separate = scenario.prefill.mode == "separate"
    return s.Engine(
        seed=scenario.seed,
        gamma=gamma,
        max_running=slots,
        max_batch_tokens=profile.max_num_batched_tokens,
        block_size=profile.block_size,
        kv_blocks=kv_blocks,
        concurrency=scenario.concurrency or 0,
        prefill=_PREFILL[scenario.prefill.mode],
        record_steps=scenario.record_steps,
        window_start_ns=window[0],
        window_end_ns=window[1],
        overhead_ns=costs.overhead_ns,
        context_ns=costs.context_ns_per_kv_token,
        draft_context_ns=costs.draft_context_ns_per_kv_token,
        verify_ns=costs.verify_ns,
        draft_ns=costs.draft_ns,
        request_ns=costs.request_ns,
        eager=costs.eager,
        extended=costs.extended,
        clamped=costs.clamped,
        extended_requests=costs.extended_requests,
        prefill_ns=_prefill_ns(profile, costs, int((prompt + output).max()), scenario.extend)
        if separate
        else np.zeros(0, dtype=np.int64),
    )


def _prefill_ns(
    profile: EngineProfile, costs: CostTables, longest: int, extend: bool
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the time of a separate prefill by tokens: its own table, or chunks of a target pass.

    Without prefill.csv a prompt runs alone in chunks of max_num_batched_tokens, each at the cost
    of a target pass of that size, overhead included.
    """
    tokens = np.arange(longest + 1)
    if profile.prefill is not None:
        return np.rint(profile.prefill_ms(tokens, extend=extend) * 1e6).astype(np.int64)
    chunk = profile.max_num_batched_tokens
    needed = costs.verify_ns[1:] if longest >= chunk else costs.verify_ns[1 : longest + 1]
    if (needed < 0).any():
        raise UserError(
            f"profile '{profile.name}' has no cost for {int(np.argmax(needed < 0)) + 1} prompt "
            "tokens in a separate prefill; measure it further or allow extension (--extend)"
        )
    whole, rest = np.divmod(tokens, chunk)
    full_ns = costs.overhead_ns + costs.verify_ns[chunk]
    rest_ns = np.where(rest > 0, costs.overhead_ns + costs.verify_ns[rest], 0)
    return whole * full_ns + rest_ns


def _check_fit(engine: s.Engine, trace: Trace, profile: EngineProfile) -> None:
    frame = trace.requests
    need = frame["prompt_tokens"] + frame["output_tokens"] + engine.gamma + engine.block_size
    bad = np.flatnonzero((need // engine.block_size > engine.kv_blocks).to_numpy())
    if len(bad):
        row = frame.iloc[int(bad[0])]
        raise UserError(
            f"request '{row['request_id']}' of trace '{trace.name}' can never fit: "
            f"{row['prompt_tokens']} prompt + {row['output_tokens']} output + {engine.gamma + 1} "
            f"draft and bonus tokens, while profile '{profile.name}' holds "
            f"kv_tokens = {profile.kv_tokens}"
        )


def _rule(
    policy: Policy, belief: Belief, profile: EngineProfile, engine: s.Engine, extend: bool
) -> s.Rule:
    """Return the policy for the kernels, with its belief; by default belief is truth."""
    believed = profile
    if belief.profile is not None or belief.lookup is not None:
        changes = {"lookup": belief.lookup} if belief.lookup is not None else None
        believed = load_profile(belief.profile or profile.name, changes)
    costs = believed.tables(
        engine.gamma, engine.max_running, extend, max_batch_tokens=engine.max_batch_tokens
    )
    kernel = policy if isinstance(policy, KernelPolicy) else None
    if belief.table == "flat":
        costs = costs.flat()
    if belief.table == "monotone" or (kernel is not None and kernel.believes == "monotone"):
        costs = costs.monotone()
    if not belief.draft:
        costs = costs.without_draft()
    exact = kernel is not None and kernel.knows_outcomes
    return s.Rule(
        rule=kernel.rule if kernel else 0,
        lag=kernel.lag if kernel else 0,
        want_confidence=kernel.needs_confidence if kernel else True,
        params=np.array([*(kernel.params if kernel else ()), 0.0]),
        memory=np.array(kernel.memory if kernel else (), dtype=np.float64),
        overhead_ns=costs.overhead_ns,
        context_ns=costs.context_ns_per_kv_token if belief.context or exact else 0.0,
        verify_ns=costs.verify_ns,
        draft_ns=costs.draft_ns,
        request_ns=costs.request_ns,
    )


def _result(
    scenario: Scenario,
    replica: Replica,
    trace: Trace,
    profile: EngineProfile,
    source: AcceptanceSource,
) -> Result:
    state = replica.state
    state.counters[s.C_TIME] = state.clock[s.NOW]
    requests = _request_table(state, trace)
    gaps = state.gaps[: state.clock[s.NUM_GAPS]]
    steps = pd.DataFrame(state.steps[: state.clock[s.NUM_STEPS]], columns=list(s.STEP_COLUMNS))
    steady = state.clock[s.WINDOW] == 2
    if steady:
        opened, closed = state.window
        counts = closed - opened
        inside = (state.requests[s.FINISH] > opened[s.C_TIME]) & (
            state.requests[s.FINISH] <= closed[s.C_TIME]
        )
        measured, window_gaps = requests[inside], gaps[opened[s.C_GAPS] : closed[s.C_GAPS]]
    else:
        counts, measured, window_gaps = state.counters.copy(), requests, gaps
        counts[s.C_TIME] -= int(state.requests[s.ARRIVAL].min())
    summary = {
        "window": "steady" if steady else "whole",
        **window_metrics(counts, measured, window_gaps, profile.num_gpus),
        **run_metrics(state.counters, requests, gaps, scenario.goodput),
    }
    config = {
        "scenario": scenario.model_dump(mode="json"),
        "trace": {"name": trace.name, "origin": trace.origin, "requests": len(trace)},
        "profile": {"name": profile.name, **profile.provenance},
        "acceptance": {"name": source.name, "origin": source.origin},
        "policy": getattr(replica.policy, "name", scenario.policy),
        "max_draft_len": replica.engine.gamma,
        "max_running": replica.engine.max_running,
        "hashes": {
            "trace": _hash(trace.requests.to_csv(index=False)),
            "profile": _hash(to_json(profile.header()) + profile.verify.to_csv(index=False)),
        },
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("dspark-sim", "numpy", "numba", "pandas", "simpy")
        },
    }
    return Result(config, summary, requests, steps, gaps)


def _request_table(state: s.State, trace: Trace) -> pd.DataFrame:
    rows, frame = state.requests, trace.requests
    table = pd.DataFrame(
        {
            "request_id": frame["request_id"],
            "category": frame["category"],
            "prompt_tokens": rows[s.PROMPT],
            "output_tokens": rows[s.OUTPUT],
            "arrival_s": rows[s.ARRIVAL] / NS_PER_S,
            "admitted_s": rows[s.ADMITTED] / NS_PER_S,
            "first_token_s": rows[s.FIRST_TOKEN] / NS_PER_S,
            "finish_s": rows[s.FINISH] / NS_PER_S,
            "steps": rows[s.STEPS],
            "draft_tokens": rows[s.DRAFTED],
            "verify_tokens": rows[s.VERIFIED],
            "accepted_tokens": rows[s.ACCEPTED],
            "preemptions": rows[s.PREEMPTED],
        }
    )
    return request_latencies(table)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


__all__ = ["Inputs", "load_scenario_trace", "math", "simulate"]
