"""TETRIS: more drafts than capacity, the likeliest of them verified (arXiv 2502.15197)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY, drafted_tokens
from dspark_sim.policies.kernel_policy import TETRIS, KernelPolicy
from dspark_sim.policies.switches import TRIMMING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_tetris(spec: Spec) -> KernelPolicy:
    """tetris:K[,extra=2,from=1] drafts K + extra and verifies the likeliest K · R of them.

    Below `from` requests it drafts K and verifies them all.
    """
    spec.expect(1, 1, "extra", "from", *TRIMMING)
    base = spec.whole("K", spec.args[0], 1)
    return KernelPolicy(
        spec.text,
        TETRIS,
        base + spec.whole_key("extra", 2),
        (float(base), float(spec.whole_key("from", 1))),
        memory=MEMORY,
        switches=spec.switches(),
    )


@kernel
def tetris_length(params: NDArray[np.float64], num: int, gamma: int) -> int:
    """Return how many tokens each of `num` requests drafts."""
    return gamma if num >= params[1] else min(int(params[0]), gamma)


@kernel
def tetris(params: NDArray[np.float64], step: Decision) -> int:
    """Verify the K · R tokens of highest cumulative probability; params = (K, from)."""
    narrow = step.clock[0] < params[1]
    return drafted_tokens(step) if narrow else int(params[0]) * step.clock[0]
