"""How long drafting takes, by draft length and head (the right panel of the paper's Fig. 4)."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd
import torch

from dspark_sim.core import UserError
from dspark_sim.model.drafters import Drafter, all_features, build_drafter
from dspark_sim.model.generate import Decoding
from dspark_sim.model.speculate import draft_block
from dspark_sim.model.weights import load_drafter, load_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class DraftTime:
    """Milliseconds of one drafted block of a batch, and of the target pass that verifies it."""

    drafter: str
    draft_len: int
    requests: int
    draft_ms: float
    draft_p10_ms: float
    draft_p90_ms: float
    verify_ms: float


def of_length(drafter: Drafter, target: Transformer, draft_len: int) -> Drafter:
    """Return a drafter with the same weights that drafts `draft_len` tokens."""
    config = replace(drafter.config, num_speculative_tokens=draft_len)
    other = build_drafter(config, target.config, target.embedding.weight)
    other.load_state_dict(drafter.state_dict())
    return other.eval().requires_grad_(False)


@torch.inference_mode()
def draft_times(
    target: Transformer,
    drafters: Mapping[str, Drafter],
    draft_lens: Sequence[int],
    requests: int = 16,
    context: int = 256,
    repeats: int = 15,
) -> list[DraftTime]:
    """Time every drafter at every length, repetitions interleaved; medians with p10 and p90.

    All requests stand at the same context length, with random tokens: time does not depend on
    them. The target pass is timed on 1 + draft_len tokens of each request.
    """
    device = target.embedding.weight.device
    tokens = torch.randint(0, target.config.vocab_size, (requests, context), device=device)
    counts = torch.full((requests,), context, device=device)
    cache = target.new_cache(requests, context + max(draft_lens) + 1)
    output = target(tokens, cache)
    cells = []
    for name, drafter in drafters.items():
        for length in draft_lens:
            one = of_length(drafter, target, length)
            known = one.new_context(all_features(output), torch.roll(tokens, -1, 1), counts)
            cells.append((name, length, one, known))
    spent: dict[tuple[str, int], list[float]] = {(n, k): [] for n, k, _, _ in cells}
    verify: dict[int, list[float]] = {k: [] for k in draft_lens}
    starts = torch.ones(requests, dtype=torch.long, device=device)
    for turn in range(repeats + 1):
        for name, length, one, known in cells:
            anchors = torch.randint(0, target.config.vocab_size, (requests,), device=device)
            began = _now(device)
            draft_block(one, known, anchors, starts, starts, Decoding(1, seed=turn))
            spent[name, length].append(_now(device) - began)
        for length in draft_lens:
            block = torch.randint(0, target.config.vocab_size, (requests, 1 + length))
            cache.lengths = counts.clone()
            began = _now(device)
            target.logits(target(block.to(device), cache).hidden)
            verify[length].append(_now(device) - began)
    return list(_summary(spent, verify, requests))


def latency_table(
    drafters: Sequence[str],
    target: str,
    draft_lens: Sequence[int],
    requests: int = 16,
    context: int = 256,
    weights: Path | None = None,
) -> pd.DataFrame:
    """Return `draft_times` of trained drafters as a table, times in ms."""
    if min(draft_lens, default=0) < 1:
        raise UserError(f"draft lengths must be 1 or more, got {list(draft_lens)}")
    for what, value in (("requests", requests), ("context", context)):
        if value < 1:
            raise UserError(f"{what} must be 1 or more, got {value}")
    if "ngram" in drafters:
        raise UserError("drafter 'ngram' has no draft time of its own: it looks tokens up")
    model, _ = load_target(target, weights)
    trained = {name: load_drafter(name, model, weights) for name in drafters}
    return pd.DataFrame(map(asdict, draft_times(model, trained, draft_lens, requests, context)))


def _summary(
    spent: Mapping[tuple[str, int], list[float]], verify: Mapping[int, list[float]], requests: int
) -> Iterator[DraftTime]:
    for (name, length), seconds in spent.items():
        ms = [1e3 * s for s in seconds[1:]]
        cuts = statistics.quantiles(ms, n=10, method="inclusive")
        passes = statistics.median(verify[length][1:]) * 1e3
        yield DraftTime(name, length, requests, statistics.median(ms), cuts[0], cuts[-1], passes)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
