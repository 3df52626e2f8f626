"""Fixed lengths: no speculation, or the same number of draft tokens for every request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision


@kernel
def fixed(params: NDArray[np.float64], step: Decision) -> None:
    """Verify min(k, draft_len) tokens of every request; params = (k,)."""
    for r in range(step.clock[0]):
        step.verify_len[r] = min(int(params[0]), step.draft_len[r])
