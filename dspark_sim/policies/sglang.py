"""SGLang's confidence scheduling of DSpark (SGLang pull requests 30261 and 35413)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY
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
def sglang(step: Decision) -> tuple[float, int, bool, float]:
    """Search (R + ΣS) / T over budgets of stale survivals of 1e-6 or more, spend it live."""
    return float(step.clock[0]), step.clock[3] + step.clock[4], False, LEAST_SURVIVAL


@kernel
def is_scheduled(step: Decision) -> bool:
    """Return whether a step is scheduled: one with prompt tokens verifies every draft whole."""
    return step.clock[1] == 0
