"""Shares of the drafts: AngelSlim's D-Cut (arXiv 2607.14647) and a fixed ratio."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY, drafted_tokens
from dspark_sim.policies.kernel_policy import DCUT, RATIO, KernelPolicy
from dspark_sim.policies.search import rank_survivals
from dspark_sim.policies.switches import TRIMMING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec

QUARTERS = 4


def read_dcut(spec: Spec) -> KernelPolicy:
    """Verify a quarter, a half, three quarters or all of the drafts, by a cost table.

    It reads live survivals, which is lossless for greedy drafts alone; lag=1 mends that.
    """
    spec.expect(0, 0, "lag", "every", *TRIMMING)
    lag = spec.lag(0)
    return KernelPolicy(
        spec.text,
        DCUT,
        spec.gamma,
        lag=lag,
        lossless=lag > 0,
        memory=MEMORY,
        switches=spec.switches(),
    )


def read_ratio(spec: Spec) -> KernelPolicy:
    """ratio:RHO verifies that share of the drafts; width=W only while at most W requests decode."""
    spec.expect(1, 1, "width", *TRIMMING)
    share = spec.number("RHO", spec.args[0], 0.0, 1.0)
    width = spec.whole_key("width", 0)
    if "width" in spec.keywords and width == 0:
        raise UserError(f"policy '{spec.text}': width must be 1 or more, got 0")
    return KernelPolicy(
        spec.text,
        RATIO,
        spec.gamma,
        (share, float(width)),
        memory=MEMORY,
        switches=spec.switches(),
    )


@kernel
def ratio(params: NDArray[np.float64], step: Decision) -> int:
    """Spend a budget of ⌈ρ · drafted⌉ tokens; of all of them beyond `width` requests."""
    drafted = drafted_tokens(step)
    narrow = params[1] < 0.5 or step.clock[0] <= params[1]
    return ceil(params[0] * drafted) if narrow else drafted


@kernel
def dcut(step: Decision) -> int:
    """Maximise (Σ of the ⌈ρ · drafted⌉ best survivals) / T over ρ = 1/4, 1/2, 3/4, 1.

    The smallest share wins a tie. Where the cost of any of the four is unknown, all is verified.
    """
    others, drafted = step.clock[0] + step.clock[1], drafted_tokens(step)
    fixed_ns = step.clock[3] + step.clock[4]
    rank_survivals(step.stale, step.draft_len, step.clock[0], 0, step.scratch)
    ranking = step.scratch.order.view(np.float64)
    best, best_rate, expected, taken = drafted, -1.0, 0.0, 0
    for quarter in range(1, QUARTERS + 1):
        budget = ceil(quarter * drafted / QUARTERS)
        if others + budget >= len(step.verify_ns) or step.verify_ns[others + budget] < 0:
            return drafted
        while taken < budget:
            expected += ranking[taken]
            taken += 1
        rate = expected / (fixed_ns + step.verify_ns[others + budget])
        if rate > best_rate:
            best, best_rate = budget, rate
    return best
