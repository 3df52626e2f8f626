"""A constant size of the target's pass: where more tokens stop paying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY
from dspark_sim.policies.kernel_policy import KNEE, KernelPolicy
from dspark_sim.policies.switches import TRIMMING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_knee(spec: Spec) -> KernelPolicy:
    """knee[:M] fills every pass up to M tokens; by default the knee of the cost table."""
    spec.expect(0, 1, *TRIMMING)
    target = spec.whole("M", spec.args[0], 1) if spec.args else 0
    return KernelPolicy(
        spec.text, KNEE, spec.gamma, memory=(*MEMORY, float(target)), switches=spec.switches()
    )


@kernel
def knee(step: Decision) -> int:
    """Verify as many drafts as the pass has room for up to M tokens, those of highest survival."""
    if step.memory[2] < 0.5:
        step.memory[2] = knee_of(step.verify_ns)
    return max(int(step.memory[2]) - step.clock[0] - step.clock[1], 0)


@kernel
def knee_of(verify_ns: NDArray[np.int64]) -> int:
    """Return the M at which tokens per time, M · SPS(M), stands highest above its straight rise.

    The knee of the curve from the origin to its largest rate: argmax of rate / largest rate − M /
    largest M, the smallest M on ties.
    """
    top, reach = 0.0, len(verify_ns) - 1
    for size in range(1, reach + 1):
        if verify_ns[size] > 0:
            top = max(top, size / verify_ns[size])
    best, height = 1, -2.0
    for size in range(1, reach + 1):
        if verify_ns[size] > 0 and size / verify_ns[size] / top - size / reach > height:
            best, height = size, size / verify_ns[size] / top - size / reach
    return best
