"""Rules that choose a number of draft tokens for the whole batch: search, keep, spend, fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.jit import kernel, kernel_inlined
from dspark_sim.policies.search import (
    allocate_budget,
    open_candidates,
    rank_survivals,
    take_candidate,
)
from dspark_sim.policies.switches import EVERY, FILL, GUARD, LEAST, MOST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision

NO_ENDS = -1
MEMORY = (0.0, 0.0)
"""What a rule with a budget remembers: steps for which the kept budget still holds, and it."""


@kernel
def global_budget(
    step: Decision,
    tokens: float,
    fixed_ns: int,
    tiers: bool,
    cut: float,
) -> int:
    """Return the number of draft tokens K that maximises expected tokens over step time.

    ``(tokens + sum of the K best survivals) / (fixed + verify[others + K])``, by stale survival,
    over all K that hold at least `min` tokens of every draft; the smallest K on ties, or the
    largest (`tie`). With `tiers` only the last K of every run of equal costs and the whole draft
    are considered; below a survival of `cut` nothing is. If the best K does not promise 1 + `guard`
    times the rate of verifying everything, everything is verified.
    """
    num, reach = step.clock[0], len(step.verify_ns) - 1
    least = int(step.switches[LEAST])
    others = size = num + step.clock[1]
    whole = others + drafted_tokens(step)
    if least > 0:
        for r in range(num):
            for j in range(min(least, step.draft_len[r])):
                tokens += step.stale[r, j]
                size += 1
    total = rank_survivals(step.stale, step.draft_len, num, least, step.scratch)
    ends = whole if tiers else NO_ENDS
    if step.switches[MOST] > 0.5:
        best, best_rate, rate = _peak(step, tokens, fixed_ns, size, total, cut, ends, True)
    else:
        best, best_rate, rate = _peak(step, tokens, fixed_ns, size, total, cut, ends, False)
    guarded = step.switches[GUARD] >= 0.0 and whole <= reach
    best = whole if guarded and best_rate < (1.0 + step.switches[GUARD]) * rate else best
    return best - others


@kernel_inlined
def _peak(
    step: Decision,
    tokens: float,
    fixed_ns: int,
    size: int,
    total: int,
    cut: float,
    ends: int,
    most: bool,
) -> tuple[int, float, float]:
    """Return the size of pass with the highest rate, that rate, and the rate of the last size.

    The sizes are those from `size` on, up to `total` ranked tokens more, as far as costs are known;
    with `ends` only those that end a run of equal costs, or are `ends`. The largest wins a tie if
    `most`, else the smallest. What selects a size stays out of the comparison with the best one,
    so that the loop waits for nothing but the sum.
    """
    verify_ns, ranking = step.verify_ns, step.scratch.order.view(np.float64)
    best, best_rate, rate = size, -1.0, -1.0
    if size < len(verify_ns) and verify_ns[size] >= 0:
        rate = tokens / (fixed_ns + verify_ns[size])
        best_rate = rate if ends == NO_ENDS or _is_edge(verify_ns, size, ends) else -1.0
    for place in range(min(total, len(verify_ns) - 1 - size)):
        tokens += ranking[place]
        here = size + place + 1
        rate = tokens / (fixed_ns + verify_ns[here]) if verify_ns[here] >= 0 else -1.0
        barred = (
            rate < 0.0
            or ranking[place] < cut
            or (ends != NO_ENDS and not _is_edge(verify_ns, here, ends))
        )
        candidate = -2.0 if barred else rate
        if candidate > best_rate or (most and candidate == best_rate):
            best, best_rate = here, candidate
    return best, best_rate, rate


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
        step.scratch,
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
    survival, draft_len, heap = step.survival, step.draft_len, step.scratch.order
    left = open_candidates(survival, draft_len, step.clock[0], step.verify_len, heap)
    while left > 0 and size + 1 < len(step.verify_ns):
        if step.verify_ns[size + 1] != step.verify_ns[size]:
            break
        left = take_candidate(survival, draft_len, step.verify_len, heap, left)
        size += 1
