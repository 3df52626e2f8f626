"""The built-in rules as one kernel, so that the engine compiles once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel_inlined
from dspark_sim.policies import kernel_policy as k
from dspark_sim.policies.atom import atom
from dspark_sim.policies.budget import fill_tier, raise_to_least
from dspark_sim.policies.dcut import dcut, ratio
from dspark_sim.policies.dspark import dspark, dspark_async
from dspark_sim.policies.fixed import fixed
from dspark_sim.policies.knee import knee
from dspark_sim.policies.ktable import drafted_length, k_table
from dspark_sim.policies.oracle import oracle
from dspark_sim.policies.sglang import sglang
from dspark_sim.policies.tetris import tetris, tetris_length
from dspark_sim.policies.threshold import threshold
from dspark_sim.policies.trt import trt
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
    if rule < k.RATIO:
        _decide_first(rule, params, step)
    elif rule == k.RATIO:
        ratio(params, step)
    elif rule == k.DCUT:
        dcut(step)
    elif rule == k.TETRIS:
        tetris(params, step)
    elif rule == k.KNEE:
        knee(step)
    else:
        oracle(step)
    raise_to_least(step)
    fill_tier(step)


@kernel_inlined
def _decide_first(rule: int, params: NDArray[np.float64], step: Decision) -> None:
    if rule == k.FIXED:
        fixed(params, step)
    elif rule == k.THRESHOLD:
        threshold(params, step)
    elif rule == k.DSPARK:
        dspark(step)
    elif rule == k.DSPARK_ASYNC:
        dspark_async(step)
    elif rule == k.VLLM:
        vllm(step)
    elif rule == k.SGLANG:
        sglang(step)
    elif rule == k.TRT:
        trt(params, step)
    elif rule == k.ATOM:
        atom(params, step)
    else:
        k_table(params, step)
