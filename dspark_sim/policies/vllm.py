"""vLLM's adaptive verification (vLLM pull request 47808, adaptive_verification.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.search import allocate_budget, global_budget

if TYPE_CHECKING:
    from dspark_sim.policies.kernel_policy import Decision


@kernel
def vllm(step: Decision) -> None:
    """Choose the budget B that maximises (N + ΣS) / (draft[R] + verify[T + B]) over all B.

    S are the survivals of the step before (1 for a new request), N the requests that sample in
    this step, T all tokens that are not drafts, prefill chunks included; the verify table is made
    monotone. The fewest tokens win a tie. The budget then goes to the highest live survivals.
    """
    num = step.clock[0]
    budget = global_budget(
        step.stale,
        step.draft_len,
        num,
        float(step.clock[2]),
        num + step.clock[1],
        step.clock[4],
        step.verify_ns,
        step.order,
        step.buckets,
    )
    allocate_budget(
        step.survival, step.draft_len, num, budget, step.verify_len, step.order, step.buckets
    )
