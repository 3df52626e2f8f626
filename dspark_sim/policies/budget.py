"""Rules that choose a number of draft tokens for the whole batch: search, keep, spend, fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.search import (
    allocate_budget,
    open_candidates,
    rank_candidates,
    take_candidate,
)
from dspark_sim.policies.switches import EVERY, FILL, GUARD, LEAST, MOST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision

MEMORY = (0.0, 0.0)
"""What a rule with a budget remembers: steps for which the kept budget still holds, and it."""


@kernel
def global_budget(
    step: Decision,
    survival: NDArray[np.float64],
    tokens: float,
    fixed_ns: int,
    tiers: bool,
    cut: float,
) -> int:
    """Return the number of draft tokens K that maximises expected tokens over step time.

    ``(tokens + sum of the K best survivals) / (fixed + verify[others + K])`` over all K that hold
    at least `min` tokens of every draft; the smallest K on ties, or the largest (`tie`). With
    `tiers` only the last K of every run of equal costs and the whole draft are considered; below
    a survival of `cut` nothing is. If the best K does not promise 1 + `guard` times the rate of
    verifying everything, everything is verified.
    """
    num, gamma, reach = step.clock[0], survival.shape[1], len(step.verify_ns) - 1
    least, most, worth = int(step.switches[LEAST]), step.switches[MOST] > 0.5, survival.reshape(-1)
    size = num + step.clock[1]
    drafted = 0
    for r in range(num):
        drafted += step.draft_len[r]
        for j in range(min(least, step.draft_len[r])):
            tokens += survival[r, j]
            size += 1
    others = num + step.clock[1]
    total = rank_candidates(survival, step.draft_len, num, step.order, step.buckets)
    whole = others + drafted
    best, best_rate, rate = size - others, -1.0, -1.0
    if size <= reach and step.verify_ns[size] >= 0:
        rate = tokens / (fixed_ns + step.verify_ns[size])
        best_rate = rate if not tiers or _is_edge(step.verify_ns, size, whole) else -1.0
    for place in range(total):
        if least > 0 and step.order[place] % gamma < least:
            continue
        size += 1
        if size > reach:
            break
        tokens += worth[step.order[place]]
        cost, rate = step.verify_ns[size], -1.0
        if cost < 0:
            continue
        rate = tokens / (fixed_ns + cost)
        if worth[step.order[place]] < cut or (tiers and not _is_edge(step.verify_ns, size, whole)):
            continue
        if rate > best_rate or (most and rate == best_rate):
            best, best_rate = size - others, rate
    guarded = step.switches[GUARD] >= 0.0 and size == whole <= reach
    return drafted if guarded and best_rate < (1.0 + step.switches[GUARD]) * rate else best


@kernel
def _is_edge(verify_ns: NDArray[np.int64], size: int, whole: int) -> bool:
    """Return whether a pass of `size` tokens ends a run of equal costs, or holds all drafts."""
    return size == whole or size + 1 == len(verify_ns) or verify_ns[size + 1] != verify_ns[size]


@kernel
def budget_is_due(step: Decision) -> bool:
    """Return whether no budget is kept from an earlier step (`every`)."""
    return step.memory[0] < 0.5


@kernel
def keep_budget(step: Decision, budget: int) -> None:
    """Keep a budget for as many steps as `every` says."""
    step.memory[0] = step.switches[EVERY]
    step.memory[1] = budget


@kernel
def spend_budget(step: Decision) -> None:
    """Give the kept budget to the candidates of highest live survival, `min` of each first."""
    step.memory[0] -= 1.0
    allocate_budget(
        step.survival,
        step.draft_len,
        step.clock[0],
        int(step.switches[LEAST]),
        int(step.memory[1]),
        step.verify_len,
        step.order,
        step.buckets,
    )


@kernel
def drafted_tokens(step: Decision) -> int:
    """Return the number of drafted tokens in the step."""
    total = 0
    for r in range(step.clock[0]):
        total += step.draft_len[r]
    return total


@kernel
def verify_everything(step: Decision) -> None:
    """Verify every draft whole."""
    for r in range(step.clock[0]):
        step.verify_len[r] = step.draft_len[r]


@kernel
def raise_to_least(step: Decision) -> None:
    """Let every request verify the first `min` tokens of its draft, whatever the rule said."""
    least = int(step.switches[LEAST])
    for r in range(step.clock[0]):
        step.verify_len[r] = max(step.verify_len[r], min(least, step.draft_len[r]))


@kernel
def fill_tier(step: Decision) -> None:
    """Spend what is left of the captured size on the trimmed tokens of highest live survival.

    A captured size ends where one more token would change the believed cost of the pass.
    """
    if step.switches[FILL] < 0.5:
        return
    size = step.clock[0] + step.clock[1]
    for r in range(step.clock[0]):
        size += step.verify_len[r]
    if size >= len(step.verify_ns) or step.verify_ns[size] < 0:
        return
    left = open_candidates(step.survival, step.draft_len, step.clock[0], step.verify_len, step.heap)
    while left > 0 and size + 1 < len(step.verify_ns):
        if step.verify_ns[size + 1] != step.verify_ns[size]:
            break
        left = take_candidate(step.survival, step.draft_len, step.verify_len, step.heap, left)
        size += 1
