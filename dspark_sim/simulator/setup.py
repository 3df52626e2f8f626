"""From a scenario to what the kernels read: limits, true costs, and the policy's belief."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance import AcceptanceSource, read_temperatures
from dspark_sim.core import NS_PER_S, UserError
from dspark_sim.policies import KernelPolicy, Policy
from dspark_sim.policies.switches import AS_IS
from dspark_sim.simulator import state as s
from dspark_sim.throughput.tables import to_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.config import Belief, Scenario
    from dspark_sim.throughput import CostTables, EngineProfile
    from dspark_sim.trace import Trace

    Ints = NDArray[np.int64]

_UNLIMITED_BLOCKS = 2**40
_PREFILL = {
    "none": s.PREFILL_NONE,
    "chunked": s.PREFILL_CHUNKED,
    "separate": s.PREFILL_SEPARATE,
}


def build_engine(scenario: Scenario, profile: EngineProfile, gamma: int, trace: Trace) -> s.Engine:
    """Return the limits, the load and the true costs of a run that drafts up to `gamma` tokens."""
    slots = min(profile.max_num_seqs, profile.max_num_batched_tokens // (1 + gamma), len(trace))
    if scenario.concurrency is not None:
        slots = min(slots, scenario.concurrency)
    if slots == 0:
        raise UserError(
            f"profile '{profile.name}': max_num_batched_tokens = {profile.max_num_batched_tokens} "
            f"cannot hold one request with {gamma} draft tokens"
        )
    costs = profile.tables(gamma, slots, scenario.extend)
    known = costs.verify_ns[1:][costs.verify_ns[1:] >= 0]
    kv_blocks = _UNLIMITED_BLOCKS
    if profile.kv_tokens is not None:
        kv_blocks = profile.kv_tokens // profile.block_size
    prompt = trace.requests["prompt_tokens"]
    longest = int(prompt.max())
    if profile.kv_tokens is not None:  # a preempted request computes its output again
        longest = int((prompt + trace.requests["output_tokens"]).max())
    opens_ns, closes_ns = _open_loop_window(scenario, trace)
    return s.Engine(
        seed=scenario.seed,
        gamma=gamma,
        max_running=slots,
        max_batch_tokens=profile.max_num_batched_tokens,
        block_size=profile.block_size,
        kv_blocks=kv_blocks,
        concurrency=scenario.concurrency or 0,
        prefill=_PREFILL[scenario.prefill.mode],
        record_steps=scenario.record == "steps",
        window_start_ns=opens_ns,
        window_end_ns=closes_ns,
        overhead_ns=costs.overhead_ns,
        context_ns=costs.context_ns_per_kv_token,
        draft_context_ns=costs.draft_context_ns_per_kv_token,
        verify_ns=costs.verify_ns,
        exact_ns=costs.verify_ns - to_ns(profile.padding_ms(np.arange(len(costs.verify_ns)))),
        pass_ns=int(known.min(initial=s.NEVER)),
        draft_ns=costs.draft_ns,
        request_ns=costs.request_ns,
        eager=costs.eager,
        extended=costs.extended,
        clamped=costs.clamped,
        extended_requests=costs.extended_requests,
        prefill_ns=_prefill_ns(profile, costs, int(prompt.min()), longest, scenario.extend)
        if scenario.prefill.mode == "separate"
        else np.zeros(0, dtype=np.int64),
    )


def _open_loop_window(scenario: Scenario, trace: Trace) -> tuple[int, int]:
    """Return when the measured window of an open loop opens and closes; never if it is the run."""
    if not (scenario.warmup_s or scenario.cooldown_s):
        return s.NEVER, s.NEVER
    first, last = int(trace.arrival_ns[0]), int(trace.arrival_ns[-1])
    opens = first + round(scenario.warmup_s * NS_PER_S)
    closes = last - round(scenario.cooldown_s * NS_PER_S)
    if opens >= closes:
        raise UserError(
            f"warmup_s = {scenario.warmup_s:g} and cooldown_s = {scenario.cooldown_s:g} leave "
            f"nothing of the {trace.duration_s:g} s that trace '{trace.name}' lasts"
        )
    return opens, closes


def _prefill_ns(
    profile: EngineProfile, costs: CostTables, shortest: int, longest: int, extend: bool
) -> Ints:
    """Return the time of a separate prefill by tokens: its own table, or chunks of a target pass.

    Without prefill.csv a prompt runs alone in chunks of max_num_batched_tokens, each at the cost
    of a target pass of that size, overhead included.
    """
    tokens = np.arange(longest + 1)
    if profile.prefill is not None:
        ms = profile.prefill_ms(tokens[shortest:], extend=extend)
        return np.concatenate((np.zeros(shortest), np.rint(ms * 1e6))).astype(np.int64)
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


def check_fit(engine: s.Engine, trace: Trace, profile: EngineProfile) -> None:
    """Refuse a trace with a request whose KV cache could never fit."""
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


def believed_temperatures(
    belief: Belief, source: AcceptanceSource, gamma: int
) -> tuple[float, ...] | None:
    """Return T_1..T_γ by which the policy's confidences are calibrated, or None."""
    name = belief.temperatures
    if name is None:
        return None
    if name != "recorded":
        found = read_temperatures(name).temperatures
    elif source.temperatures:
        found = source.temperatures
    else:
        raise UserError(
            f"belief.temperatures = 'recorded': acceptance '{source.name}' is no recording that "
            "keeps sts_temperatures; a file of temperatures can be named instead"
        )
    if len(found) < gamma:
        raise UserError(
            f"belief.temperatures = '{name}' holds {len(found)} temperatures, but {gamma} tokens "
            "are drafted: one per draft position is needed"
        )
    return found[:gamma]


def build_rule(
    policy: Policy, belief: Belief, believed: EngineProfile, engine: s.Engine, extend: bool
) -> s.Rule:
    """Return the policy for the kernels, with its belief, which starts from a profile."""
    if belief.lookup is not None:
        believed = replace(believed, lookup=belief.lookup)
    costs = believed.tables(
        engine.gamma, engine.max_running, extend, max_batch_tokens=engine.max_batch_tokens
    )
    kernel = policy if isinstance(policy, KernelPolicy) else None
    if belief.context_tokens:
        costs = costs.at_context(belief.context_tokens)
    if belief.table == "flat":
        costs = costs.flat()
    if "monotone" in (belief.table, getattr(policy, "believes", "")):
        costs = costs.monotone()
    if not belief.draft:
        costs = costs.without_draft()
    context = belief.context or (kernel is not None and kernel.knows_outcomes)
    return s.Rule(
        rule=kernel.rule if kernel else 0,
        lag=kernel.lag if kernel else 0,
        want_confidence=bool(getattr(policy, "needs_confidence", True)),
        params=kernel.packed_params if kernel else np.zeros(1),
        memory=np.array(kernel.memory if kernel else (), dtype=np.float64),
        switches=np.array((kernel.switches if kernel else AS_IS).packed()),
        overhead_ns=costs.overhead_ns,
        context_ns=costs.context_ns_per_kv_token if context else 0.0,
        draft_context_ns=costs.draft_context_ns_per_kv_token if context else 0.0,
        verify_ns=costs.verify_ns,
        draft_ns=costs.draft_ns,
        request_ns=costs.request_ns,
    )
