"""TensorRT-LLM's planner (TensorRT-LLM pull requests 17056 and 18392, dspark_planner.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY, drafted_tokens
from dspark_sim.policies.kernel_policy import TRT, KernelPolicy
from dspark_sim.policies.search import allocate_budget
from dspark_sim.policies.switches import BUDGET, LEAST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_trt(spec: Spec) -> KernelPolicy:
    """At least one draft token each, a gain of 1 % or verify all; budgets=tiers, drain=LOSS.

    Its budget reads live survivals, which is lossless for greedy drafts alone; lag=1 mends that.
    """
    spec.expect(0, 0, "budgets", "drain", "tail", *BUDGET)
    if "tail" in spec.keywords and "drain" not in spec.keywords:
        raise spec.wrong("tail", "come with drain, whose tail batch it is", "no drain")
    lag = spec.lag(0)
    tiers = spec.choice("budgets", ("all", "tiers"), "all") == "tiers"
    drain = spec.key("drain", 0.0, 0.0, 1e9)
    tail = spec.whole_key("tail", 16, 1)
    return KernelPolicy(
        spec.text,
        TRT,
        spec.gamma,
        (float(tiers), drain, float(tail)),
        lag=lag,
        lossless=lag > 0,
        memory=MEMORY,
        switches=spec.switches(least=1, guard=0.01),
    )


@kernel
def trt(params: NDArray[np.float64], step: Decision) -> tuple[float, int, bool, float]:
    """Search (R + ΣS) / T with a floor of one draft token, guarded by gain and by drain.

    params = (tiers only, drain loss multiplier, requests of the tail batch).
    """
    return float(step.clock[0]), step.clock[3] + step.clock[4], params[0] > 0.5, 0.0


@kernel
def pays_at_the_tail(params: NDArray[np.float64], step: Decision, budget: int) -> bool:
    """Return whether the time saved now exceeds what the tokens given up cost at the run's tail.

    T(all) − T(K) > loss · (1 − τ(K) / τ(all)) · T(tail): a request that is τ(K) / τ(all) as fast
    runs that share of a step longer, in a batch of only `tail` requests.
    """
    if params[1] == 0.0:
        return True
    others, drafted = step.clock[0] + step.clock[1], drafted_tokens(step)
    fixed_ns = step.clock[3] + step.clock[4]
    gamma, reach = step.survival.shape[1], len(step.verify_ns) - 1
    if drafted == 0 or others + drafted > reach or step.verify_ns[others + drafted] < 0:
        return True
    every = kept = float(step.clock[0])
    allocate_budget(
        step.stale,
        step.draft_len,
        step.clock[0],
        int(step.switches[LEAST]),
        budget,
        step.verify_len,
        step.scratch,
    )
    for r in range(step.clock[0]):
        for j in range(step.draft_len[r]):
            every += step.stale[r, j]
            kept += step.stale[r, j] if j < step.verify_len[r] else 0.0
    tail_ns = fixed_ns + step.verify_ns[min(int(params[2]) * (gamma + 1), reach)]
    saved_ns = step.verify_ns[others + drafted] - step.verify_ns[others + budget]
    return saved_ns > params[1] * (1.0 - kept / every) * tail_ns
