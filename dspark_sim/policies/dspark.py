"""DSpark's scheduler: Algorithm 1, and its asynchronous form (arXiv 2607.05147, 3.2.2 and 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.jit import kernel
from dspark_sim.policies.budget import MEMORY
from dspark_sim.policies.kernel_policy import DSPARK, DSPARK_ASYNC, KernelPolicy
from dspark_sim.policies.search import sort_places, spread_candidates
from dspark_sim.policies.switches import BUDGET, TRIMMING

if TYPE_CHECKING:
    from dspark_sim.policies.kernel_policy import Decision
    from dspark_sim.policies.spec import Spec


def read_dspark(spec: Spec) -> KernelPolicy:
    """Algorithm 1: live survival, admit while expected throughput rises, stop at the first miss."""
    spec.expect(0, 0, *TRIMMING)
    return KernelPolicy(spec.text, DSPARK, spec.gamma, switches=spec.switches())


def read_dspark_async(spec: Spec) -> KernelPolicy:
    """Budget from survival `lag` steps old by global search, tokens by live survival.

    A live budget (lag 0) looks ahead and is not lossless (arXiv 2607.05147, Appendix A).
    """
    spec.expect(0, 0, *BUDGET)
    lag = spec.lag(2)
    return KernelPolicy(
        spec.text,
        DSPARK_ASYNC,
        spec.gamma,
        lag=lag,
        lossless=lag > 0,
        memory=MEMORY,
        switches=spec.switches(),
    )


@kernel
def dspark(step: Decision) -> None:
    """Admit tokens by live survival while Θ = τ · SPS(B) strictly rises; stop at the first miss.

    The stop makes the admission of a token independent of itself and of later ones, which keeps
    the output lossless; it finds the best length only where Θ has one peak.
    """
    num = step.clock[0]
    tokens_in_batch = num + step.clock[1]
    fixed_ns = step.clock[3] + step.clock[4]
    step.verify_len[:num] = 0
    total = spread_candidates(step.survival, step.draft_len, num, step.scratch)
    if step.verify_ns[tokens_in_batch] < 0:
        return
    gamma, worth = step.survival.shape[1], step.survival.reshape(-1)
    order, buckets, bucket, ordered = step.scratch.order, step.scratch.buckets, 0, 0
    expected = float(num)
    rate = expected / (fixed_ns + step.verify_ns[tokens_in_batch])
    for place in range(min(total, len(step.verify_ns) - 1 - tokens_in_batch)):
        if place == ordered:
            while buckets[bucket] == ordered:
                bucket += 1
            sort_places(worth, gamma, order, ordered, buckets[bucket])
            ordered = buckets[bucket]
        best = order[place]
        expected += worth[best]
        cost = step.verify_ns[tokens_in_batch + place + 1]
        if cost < 0 or expected / (fixed_ns + cost) <= rate:
            break
        rate = expected / (fixed_ns + cost)
        step.verify_len[best // gamma] += 1


@kernel
def dspark_async(step: Decision) -> tuple[float, int, bool, float]:
    """Search (R + ΣS) / T over budgets of stale survivals, spend the best by live survival.

    A budget that is older than the drafts it is spent on is what keeps this form lossless. A
    request without history counts survival 1.
    """
    return float(step.clock[0]), step.clock[3] + step.clock[4], False, 0.0
