"""Rules that choose one draft length for the whole batch, before drafting, from what they learn.

They see what an engine sees: how many of the tokens that were verified were accepted. What was not
verified teaches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView, SchedulerView

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class BatchLength:
    """Drafts and verifies `choose(view)` tokens for every request; a subclass chooses."""

    needs_confidence = False
    lossless = True

    def __init__(self, spec: Spec) -> None:
        self.name, self.max_draft_len = spec.text, spec.gamma

    def choose(self, view: DraftView) -> int:
        """Return how many tokens every request drafts in this step, 0 to γ."""
        raise NotImplementedError

    def draft_lengths(self, view: DraftView) -> Ints:
        """Return draft_len (R,), the same for all."""
        return np.full(view.num_requests, self.choose(view), dtype=np.int64)

    def verify_lengths(self, view: SchedulerView) -> Ints:
        """Return verify_len (R,): everything that was drafted."""
        return view.draft_len


def fastest_length(view: DraftView, expected: Floats, lengths: list[int]) -> int:
    """Return the k that maximises R · expected[k] / T(k), the first of `lengths` on ties.

    T(k) = F + draft[R, k] + verify[R (k + 1) + P]; drafting nothing costs no draft. A pass outside
    the table is never chosen, but for the first length.
    """
    num, cost = view.num_requests, view.cost
    best, best_rate = lengths[0], 0.0
    for k in lengths:
        tokens = num * (k + 1) + view.prefill_tokens
        if tokens >= len(cost.verify_ns) or cost.verify_ns[tokens] < 0:
            continue
        draft_ns = int(cost.draft_ns[num, k]) if k else 0
        rate = num * float(expected[k]) / (cost.fixed_ns + draft_ns + int(cost.verify_ns[tokens]))
        if rate > best_rate:
            best, best_rate = k, rate
    return best
