"""A static confidence threshold (arXiv 2607.05147, Fig. 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision


@kernel
def threshold(params: NDArray[np.float64], step: Decision) -> None:
    """Keep tokens while the confidence (or, params[1] = 1, the survival) is at least params[0]."""
    values = step.survival if params[1] > 0.5 else step.confidence
    for r in range(step.clock[0]):
        keep = 0
        while keep < step.draft_len[r] and values[r, keep] >= params[0]:
            keep += 1
        step.verify_len[r] = keep
