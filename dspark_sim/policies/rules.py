"""The built-in rules as one kernel, so that the engine compiles once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.dspark import dspark, dspark_async
from dspark_sim.policies.fixed import fixed
from dspark_sim.policies.oracle import oracle
from dspark_sim.policies.threshold import threshold
from dspark_sim.policies.vllm import vllm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision

FIXED, THRESHOLD, DSPARK, DSPARK_ASYNC, VLLM, ORACLE = range(6)


@kernel
def decide(rule: int, params: NDArray[np.float64], step: Decision) -> None:
    """Write the verify lengths of one step by rule number."""
    if rule == FIXED:
        fixed(params, step)
    elif rule == THRESHOLD:
        threshold(params, step)
    elif rule == DSPARK:
        dspark(step)
    elif rule == DSPARK_ASYNC:
        dspark_async(step)
    elif rule == VLLM:
        vllm(step)
    else:
        oracle(step)
