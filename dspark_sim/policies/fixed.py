"""Fixed lengths: no speculation, or the same number of draft tokens for every request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.kernel_policy import FIXED, KernelPolicy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_none(spec: Spec) -> KernelPolicy:
    """No speculation: nothing is drafted, one token per step."""
    spec.expect(0, 0)
    return KernelPolicy(spec.text, FIXED, 0, (0.0,), needs_confidence=False)


def read_fixed(spec: Spec) -> KernelPolicy:
    """fixed:K drafts and verifies K tokens; fixed:K,gamma=G drafts G and verifies K."""
    spec.expect(1, 1, "gamma", "fill")
    length = spec.whole("K", spec.args[0])
    drafted = spec.whole_key("gamma", length)
    if drafted < length:
        raise spec.wrong("gamma", f"be at least K = {length}", str(drafted))
    switches = spec.switches()
    return KernelPolicy(
        spec.text,
        FIXED,
        drafted,
        (float(length),),
        needs_confidence=switches.fill,
        switches=switches,
    )


@kernel
def fixed(params: NDArray[np.float64], step: Decision) -> None:
    """Verify min(k, draft_len) tokens of every request; params = (k,)."""
    for r in range(step.clock[0]):
        step.verify_len[r] = min(int(params[0]), step.draft_len[r])
