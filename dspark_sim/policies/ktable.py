"""vLLM's draft length by batch size (num_speculative_tokens_per_batch_size, pull request 45953)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dspark_sim.core import UserError
from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY, keep_budget, spend_budget, verify_everything
from dspark_sim.policies.kernel_policy import K_TABLE, KernelPolicy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec

_ENTRY = re.compile(r"(\d+)-(\d+):(\d+)")


def read_k_table(spec: Spec) -> KernelPolicy:
    """k-table:LO-HI:K,… drafts K tokens where LO to HI requests decode; gaps inherit.

    With adaptive=yes γ tokens are drafted and R · K of them verified, those of highest survival.
    """
    spec.expect(1, 999, "adaptive", "min", "fill")
    adaptive = spec.choice("adaptive", ("no", "yes"), "no") == "yes"
    if not adaptive and {"min", "fill"} & set(spec.keywords):
        raise UserError(
            f"policy '{spec.text}': min and fill change what is trimmed, and without adaptive=yes "
            "nothing is"
        )
    entries = _entries(spec)
    flat = [float(value) for low, _, length in entries for value in (low, length)]
    return KernelPolicy(
        spec.text,
        K_TABLE,
        spec.gamma,
        (float(adaptive), float(len(entries)), *flat),
        needs_confidence=adaptive,
        memory=MEMORY,
        switches=spec.switches(),
    )


def _entries(spec: Spec) -> list[tuple[int, int, int]]:
    entries: list[tuple[int, int, int]] = []
    for text in spec.args:
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise spec.wrong("a range", "be of the form LO-HI:K, as in 1-64:7", f"'{text}'")
        low, high, length = map(int, match.groups())
        least = entries[-1][1] + 1 if entries else 1
        if low < least or high < low or (not entries and low != 1):
            wanted = f"begin at {least} or later" if entries else "begin at 1"
            raise spec.wrong(f"range {low}-{high}", f"{wanted} and not end before", f"'{text}'")
        entries.append((low, high, length))
    return entries


@kernel
def table_length(params: NDArray[np.float64], num: int, gamma: int) -> int:
    """Return K for `num` decoding requests: that of the last range that has begun, at most γ."""
    length = 0.0
    for entry in range(int(params[1])):
        if params[2 + 2 * entry] <= num:
            length = params[3 + 2 * entry]
    return min(int(length), gamma)


@kernel
def drafted_length(params: NDArray[np.float64], num: int, gamma: int) -> int:
    """Return how many tokens each request drafts: K, or γ where R · K are chosen among them."""
    length = table_length(params, num, gamma)
    return gamma if params[0] > 0.5 and length > 0 else length


@kernel
def k_table(params: NDArray[np.float64], step: Decision) -> None:
    """Verify the whole draft, or the R · K best tokens; params = (adaptive, n, lo, K, …)."""
    if params[0] < 0.5:
        verify_everything(step)
        return
    num = step.clock[0]
    keep_budget(step, num * table_length(params, num, step.survival.shape[1]))
    spend_budget(step)
