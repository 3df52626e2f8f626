"""Step costs that an engine measures on itself before it serves, as vLLM does at startup.

As in vLLM's pull request 47808: a target pass by batch tokens and a draft by requests, medians of
a few repetitions at one context length. What a step takes besides is the additive term α(R).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import pandas as pd
import torch

from dspark_sim.core import NS_PER_MS, NS_PER_S
from dspark_sim.model.engine.engine import Engine
from dspark_sim.model.engine.packed import Piece, pack, packed_forward
from dspark_sim.model.engine.report import StepWatch
from dspark_sim.model.engine.schedule import Limits, Sampling
from dspark_sim.model.engine.slots import SlotCache
from dspark_sim.throughput import EngineProfile

if TYPE_CHECKING:
    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.transformer import Transformer

_ENOUGH_NS = NS_PER_S // 2
_AUTOREGRESSIVE = ("eagle3", "mtp1")


@dataclass(frozen=True)
class _Bench:
    """What is timed: at `context` tokens per request, `repeats` times after a first one."""

    target: Transformer
    drafter: Drafter | None
    sampling: Sampling | None
    context: int
    repeats: int


def startup_profile(
    target: Transformer,
    drafter: Drafter | None,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    *,
    context: int = 64,
    repeats: int = 5,
) -> EngineProfile:
    """Measure what this engine's steps cost on this machine, in seconds for a small model.

    Parameters
    ----------
    target, drafter, limits, sampling
        As of the engine that the profile is for.
    context
        Tokens that every request has in its slot.
    repeats
        Repetitions per point, fewer where they take long.
    """
    bench = _Bench(target, drafter, sampling, context, repeats)
    limits = limits or Limits()
    gamma = 0 if drafter is None else drafter.gamma
    slots = limits.max_running(gamma)
    sizes = doubling(limits.max_num_batched_tokens)
    verify = [_verify_row(bench, size, slots, 1 + gamma) for size in sizes]
    steps = [_step_row(bench, requests) for requests in doubling(slots)]
    table = pd.DataFrame(steps, columns=["num_requests", "draft_len", "draft_ms", "rest_ms"])
    draft = table[["num_requests", "draft_len", "draft_ms"]]
    device = target.embedding.weight.device
    return EngineProfile(
        name=f"{target.config.name}-startup",
        engine="dspark-sim",
        model=target.config.name,
        gpu=str(device),
        num_gpus=1,
        dtype=str(target.embedding.weight.dtype).removeprefix("torch."),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_tokens=limits.max_num_seqs * limits.max_model_len,
        lookup="linear",
        draft_lookup="linear",
        drafter=drafter_kind(drafter),
        verify=pd.DataFrame(verify, columns=["batch_tokens", "kv_tokens_read", "ms"]),
        draft=draft.rename(columns={"draft_ms": "ms"}) if drafter is not None else None,
        requests=table[["num_requests", "rest_ms"]].rename(columns={"rest_ms": "ms"}),
        provenance={
            "source": f"measured by the engine at its start, {context} tokens of context each",
            "method": f"medians of up to {repeats} repetitions",
        },
    )


def drafter_kind(drafter: Drafter | None) -> Literal["none", "block", "autoregressive"]:
    """Return how a drafter's cost grows with its length, as a profile calls it."""
    if drafter is None:
        return "none"
    return "autoregressive" if drafter.config.kind in _AUTOREGRESSIVE else "block"


def doubling(last: int) -> list[int]:
    """Return 1, 2, 4, … and the last number.

    >>> doubling(6)
    [1, 2, 4, 6]
    """
    return [*(2**k for k in range((last - 1).bit_length())), last]


@torch.inference_mode()
def _verify_row(bench: _Bench, size: int, slots: int, each: int) -> tuple[int, int, float]:
    """Time target passes over `size` tokens of requests that verify `each` tokens, if they can."""
    target, context = bench.target, bench.context
    device, c = target.embedding.weight.device, target.config
    requests = min(slots, -(-size // each))
    bounds = [size * r // requests for r in range(requests + 1)]
    counts = [after - before for before, after in pairwise(bounds)]
    pieces = [Piece(slot, context, [0] * count) for slot, count in enumerate(counts)]
    cache = SlotCache.allocate(target, None, requests, context + max(counts))
    times: list[int] = []
    while (len(times) <= bench.repeats and sum(times) < _ENOUGH_NS) or len(times) < 2:
        watch = StepWatch(device)
        batch = pack(pieces, [], c.num_heads // c.num_kv_heads, device)
        hidden = packed_forward(target, batch, cache).hidden
        target.logits(hidden[: requests * each])
        watch.lap("verify")
        times.append(watch.parts["verify"])
    return size, requests * context, statistics.median(times[1:]) / NS_PER_MS


def _step_row(bench: _Bench, requests: int) -> tuple[int, int, float, float]:
    """Time steps of a full batch: what its draft takes, and all but draft and verification."""
    gamma = 0 if bench.drafter is None else bench.drafter.gamma
    longest = (2 + bench.repeats) * (1 + gamma)
    limits = Limits(requests, requests * max(bench.context, 1 + gamma), bench.context + longest)
    policy = f"fixed:{gamma}" if gamma else "none"
    engine = Engine(bench.target, bench.drafter, policy, limits, sampling=bench.sampling)
    for _ in range(requests):
        engine.add([0] * bench.context, longest)
    engine.step()  # all prompts
    taken = (engine.step() for _ in range(1 + bench.repeats))
    _, *reports = [report for report in taken if report is not None]
    draft = statistics.median(report.draft_ns for report in reports)
    rest = statistics.median(r.step_ns - r.draft_ns - r.verify_ns for r in reports)
    return requests, gamma, draft / NS_PER_MS, rest / NS_PER_MS
