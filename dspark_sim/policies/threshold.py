"""Confidence thresholds: static (arXiv 2607.05147, Fig. 5), SpecDec++'s, and self-adjusting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.kernel_policy import THRESHOLD, KernelPolicy
from dspark_sim.policies.switches import TRIMMING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec

CONFIDENCE, SURVIVAL, AUTO = 0.0, 1.0, 2.0


def read_threshold(spec: Spec) -> KernelPolicy:
    """threshold:TAU keeps tokens while confidence >= TAU; on=survival tests the product.

    on=rejection keeps them while the chance of at least one rejection is at most TAU, and
    threshold:auto keeps them while confidence >= the request's mean confidence, held in low..high.
    That mean looks at later tokens, hence auto is not lossless.
    """
    if spec.args[:1] == ("auto",):
        return _auto(spec)
    spec.expect(1, 1, "on", *TRIMMING)
    tau = spec.number("TAU", spec.args[0], 0.0, 1.0)
    on = spec.choice("on", ("confidence", "survival", "rejection"), "confidence")
    params = {
        "confidence": (tau, CONFIDENCE),
        "survival": (tau, SURVIVAL),
        "rejection": (1.0 - tau, SURVIVAL),
    }[on]
    return KernelPolicy(spec.text, THRESHOLD, spec.gamma, params, switches=spec.switches())


def _auto(spec: Spec) -> KernelPolicy:
    spec.expect(1, 1, "low", "high", *TRIMMING)
    low = spec.key("low", 0.1, 0.0, 1.0)
    params = (low, AUTO, spec.key("high", 0.8, low, 1.0))
    return KernelPolicy(
        spec.text, THRESHOLD, spec.gamma, params, lossless=False, switches=spec.switches()
    )


@kernel
def threshold(params: NDArray[np.float64], step: Decision) -> None:
    """Keep tokens while the confidence, or the survival, is at least a threshold.

    params = (threshold, which), or (low, 2, high) for the mean confidence of the request's draft.
    """
    values = step.survival if params[1] == SURVIVAL else step.confidence
    for r in range(step.clock[0]):
        tau = params[0]
        if params[1] == AUTO and step.draft_len[r] > 0:
            mean = step.confidence[r, : step.draft_len[r]].mean()
            tau = min(max(mean, params[0]), params[2])
        keep = 0
        while keep < step.draft_len[r] and values[r, keep] >= tau:
            keep += 1
        step.verify_len[r] = keep
