"""SGLang's confidence scheduling of DSpark (SGLang pull requests 30261 and 35413)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import (
    MEMORY,
    budget_is_due,
    global_budget,
    keep_budget,
    spend_budget,
    verify_everything,
)
from dspark_sim.policies.kernel_policy import SGLANG, KernelPolicy
from dspark_sim.policies.switches import BUDGET

if TYPE_CHECKING:
    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec

LEAST_SURVIVAL = 1e-6


def read_sglang(spec: Spec) -> KernelPolicy:
    """dspark-async at lag 2 without hopeless tokens, verifying all beside a prefill."""
    spec.expect(0, 0, *BUDGET)
    lag = spec.lag(2)
    return KernelPolicy(
        spec.text,
        SGLANG,
        spec.gamma,
        lag=lag,
        lossless=lag > 0,
        memory=MEMORY,
        switches=spec.switches(),
    )


@kernel
def sglang(step: Decision) -> None:
    """Search (R + ΣS) / T over budgets of stale survivals of 1e-6 or more, spend it live.

    A step with prompt tokens is not scheduled: it verifies every draft whole.
    """
    if step.clock[1] > 0:
        verify_everything(step)
        return
    if budget_is_due(step):
        fixed_ns = step.clock[3] + step.clock[4]
        tokens = float(step.clock[0])
        budget = global_budget(step, step.stale, tokens, fixed_ns, False, LEAST_SURVIVAL)
        keep_budget(step, budget)
    spend_budget(step)
