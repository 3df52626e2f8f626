"""ROCm ATOM's ragged schedule (ATOM, atom/spec_decode/dspark_scheduler.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.kernel_policy import ATOM, KernelPolicy
from dspark_sim.policies.search import open_candidates, take_candidate
from dspark_sim.policies.switches import TRIMMING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec

USUAL_BUCKETS = "1+3+6+8"


def read_atom(spec: Spec) -> KernelPolicy:
    """Lengths from survivals `lag` steps old with an early stop, rounded up to q-buckets."""
    spec.expect(0, 0, "lag", "buckets", *TRIMMING)
    texts = spec.keywords.get("buckets", USUAL_BUCKETS).split("+")
    buckets = sorted({spec.whole("a bucket", text, 1) for text in texts})
    return KernelPolicy(
        spec.text,
        ATOM,
        spec.gamma,
        (float(len(buckets)), *map(float, buckets)),
        lag=spec.lag(2),
        switches=spec.switches(),
    )


@kernel
def atom(params: NDArray[np.float64], step: Decision) -> None:
    """Admit by stale survival while τ / verify[B] rises; stop; round each length up to a bucket.

    The draft's time is not part of the rate. A request whose stale survival is 1 throughout, as a
    new one's is, verifies its whole draft. params = (number of buckets, buckets of 1 + ℓ tokens).
    """
    num = step.clock[0]
    batch, expected = num + step.clock[1], float(num)
    for r in range(num):
        length = step.draft_len[r]
        fresh = length > 0 and step.stale[r, length - 1] == 1.0
        step.verify_len[r] = length if fresh else 0
        batch += step.verify_len[r]
        expected += step.verify_len[r]
    size = open_candidates(step.stale, step.draft_len, num, step.verify_len, step.scratch.order)
    reach = len(step.verify_ns) - 1
    if batch <= reach and step.verify_ns[batch] > 0:
        rate = expected / step.verify_ns[batch]
        while size > 0 and batch < reach:
            best = step.scratch.order[0]
            expected += step.stale[best, step.verify_len[best]]
            batch += 1
            if step.verify_ns[batch] <= 0 or expected / step.verify_ns[batch] <= rate:
                break
            rate = expected / step.verify_ns[batch]
            size = take_candidate(
                step.stale, step.draft_len, step.verify_len, step.scratch.order, size
            )
    for r in range(num):
        step.verify_len[r] = _rounded_up(params, step.verify_len[r], step.draft_len[r])


@kernel
def _rounded_up(params: NDArray[np.float64], length: int, drafted: int) -> int:
    """Return the smallest length of a bucket that holds `length`, at most what was drafted."""
    for place in range(1, int(params[0]) + 1):
        if params[place] >= length + 1:
            return min(int(params[place]) - 1, drafted)
    return drafted
