"""The built-in rules as one kernel, so that the engine compiles once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel, kernel_inlined
from dspark_sim.policies import kernel_policy as k
from dspark_sim.policies.atom import atom
from dspark_sim.policies.budget import (
    budget_is_due,
    drafted_tokens,
    fill_tier,
    global_budget,
    keep_budget,
    raise_to_least,
    spend_budget,
    verify_everything,
)
from dspark_sim.policies.dcut import dcut, ratio
from dspark_sim.policies.dspark import dspark, dspark_async
from dspark_sim.policies.fixed import fixed
from dspark_sim.policies.knee import knee
from dspark_sim.policies.ktable import drafted_length, k_table
from dspark_sim.policies.oracle import oracle
from dspark_sim.policies.sglang import is_scheduled, sglang
from dspark_sim.policies.tetris import tetris, tetris_length
from dspark_sim.policies.threshold import threshold
from dspark_sim.policies.trt import pays_at_the_tail, trt
from dspark_sim.policies.vllm import vllm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision


@kernel_inlined
def draft_length(rule: int, params: NDArray[np.float64], num: int, gamma: int) -> int:
    """Return how many tokens each of `num` decoding requests drafts: γ, or a schedule's length."""
    if rule == k.K_TABLE:
        return drafted_length(params, num, gamma)
    if rule == k.TETRIS:
        return tetris_length(params, num, gamma)
    return gamma


@kernel_inlined
def decide(rule: int, params: NDArray[np.float64], step: Decision) -> None:
    """Write the verify lengths of one step by rule number, then as the switches change them."""
    if rule >= k.RATIO:
        _spend(rule, params, step)
    elif rule == k.FIXED:
        fixed(params, step)
    elif rule == k.THRESHOLD:
        threshold(params, step)
    elif rule == k.DSPARK:
        dspark(step)
    elif rule == k.ATOM:
        atom(params, step)
    elif rule == k.K_TABLE:
        k_table(params, step)
    else:
        oracle(step)
    raise_to_least(step)
    fill_tier(step)


@kernel
def _spend(rule: int, params: NDArray[np.float64], step: Decision) -> None:
    """Give the tokens of highest live survival a budget that is kept for some steps."""
    if rule == k.SGLANG and not is_scheduled(step):
        verify_everything(step)
        return
    if budget_is_due(step):
        keep_budget(step, _budget(rule, params, step))
    spend_budget(step)


@kernel
def _budget(rule: int, params: NDArray[np.float64], step: Decision) -> int:
    if rule == k.RATIO:
        return ratio(params, step)
    if rule == k.DCUT:
        return dcut(step)
    if rule == k.TETRIS:
        return tetris(params, step)
    if rule == k.KNEE:
        return knee(step)
    if rule == k.DSPARK_ASYNC:
        tokens, fixed_ns, tiers, cut = dspark_async(step)
    elif rule == k.VLLM:
        tokens, fixed_ns, tiers, cut = vllm(step)
    elif rule == k.SGLANG:
        tokens, fixed_ns, tiers, cut = sglang(step)
    else:
        tokens, fixed_ns, tiers, cut = trt(params, step)
    budget = global_budget(step, tokens, fixed_ns, tiers, cut)
    if rule == k.TRT and not pays_at_the_tail(params, step, budget):
        return drafted_tokens(step)
    return budget
