"""vLLM's adaptive verification (vLLM pull request 47808, adaptive_verification.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY
from dspark_sim.policies.kernel_policy import VLLM, KernelPolicy
from dspark_sim.policies.switches import BUDGET

if TYPE_CHECKING:
    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_vllm(spec: Spec) -> KernelPolicy:
    """Budget from survival `lag` steps old over a monotone cost table, tokens by live survival."""
    spec.expect(0, 0, *BUDGET)
    lag = spec.lag(1)
    return KernelPolicy(
        spec.text,
        VLLM,
        spec.gamma,
        lag=lag,
        believes="monotone",
        lossless=lag > 0,
        memory=MEMORY,
        switches=spec.switches(),
    )


@kernel
def vllm(step: Decision) -> tuple[float, int, bool, float]:
    """Search (N + ΣS) / (draft[R] + verify[T + B]) over all budgets B, the smallest on a tie.

    S are the survivals of the step before (1 for a new request), N the requests that sample in
    this step, T all tokens that are not drafts, prefill chunks included; the verify table is made
    monotone. The budget then goes to the highest live survivals.
    """
    return float(step.clock[2]), step.clock[4], False, 0.0
