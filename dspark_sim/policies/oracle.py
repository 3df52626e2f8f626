"""The oracle: knows which drafts will be accepted. A yardstick, not lossless, labelled as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.kernel_policy import ORACLE, KernelPolicy

if TYPE_CHECKING:
    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_oracle(spec: Spec) -> KernelPolicy:
    """Verify only drafts that will be accepted. A yardstick: not lossless."""
    spec.expect(0, 0)
    return KernelPolicy(
        spec.text, ORACLE, spec.gamma, needs_confidence=False, lossless=False, knows_outcomes=True
    )


@kernel
def oracle(step: Decision) -> None:
    """Verify only drafts that will be accepted: the B that maximises (R + B) / T(R + B).

    Myopic: best for this step, so other rules may beat it by a little over a run. The smallest B
    wins a tie; tokens are given position by position, in order of admission.
    """
    num = step.clock[0]
    others = num + step.clock[1]
    fixed_ns = step.clock[3] + step.clock[4]
    available = 0
    for r in range(num):
        step.verify_len[r] = 0
        available += min(step.accepted[r], step.draft_len[r])
    best, best_rate = 0, -1.0
    for budget in range(min(available, len(step.verify_ns) - 1 - others) + 1):
        cost = step.verify_ns[others + budget]
        if cost >= 0 and (num + budget) / (fixed_ns + cost) > best_rate:
            best, best_rate = budget, (num + budget) / (fixed_ns + cost)
    position = 0
    while best > 0:
        for r in range(num):
            if best > 0 and min(step.accepted[r], step.draft_len[r]) > position:
                step.verify_len[r] += 1
                best -= 1
        position += 1
