"""Plain batched decoding with the verifier: the baseline, and the source of training answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark_sim.core import UserError
from dspark_sim.model.sampling import COMMIT, distribution, draw, uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.model.transformer import KVCache, Output, Transformer


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen; a response ends at `max_tokens`, or `extra` past `stop`."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: int | None = None
    extra: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature must be 0 or more and finite, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must lie in 0..1 and above 0, got {self.top_p}")


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token rows right-padded to (R, W) and their lengths (R,)."""
    counts = torch.tensor([len(row) for row in rows], device=device)
    tokens = torch.zeros(len(rows), int(counts.max()), dtype=torch.long, device=device)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.as_tensor(row, device=device)
    return tokens, counts


def prefill(
    model: Transformer, prompts: Sequence[Sequence[int]], room: int
) -> tuple[KVCache, Output, Tensor, Tensor]:
    """Process all prompts in one pass: cache, output, padded tokens (R, W), lengths (R,).

    The cache has `room` for as many tokens more.
    """
    tokens, counts = pad(prompts, model.embedding.weight.device)
    cache = model.new_cache(len(prompts), tokens.shape[1] + room)
    return cache, model(tokens, cache, counts), tokens, counts


def last(values: Tensor, counts: Tensor) -> Tensor:
    """Return (R, …) the entry at counts − 1 of (R, W, …)."""
    return values[torch.arange(len(counts), device=counts.device), counts - 1]


def cut(tokens: list[int], c: Decoding) -> list[int]:
    """Return the response as far as it goes: `max_tokens`, or `extra` past the stop token."""
    tokens = tokens[: c.max_tokens]
    if c.stop is not None and c.stop in tokens:
        tokens = tokens[: tokens.index(c.stop) + 1 + c.extra]
    return tokens


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    c: Decoding,
    requests: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return one response per prompt; `requests` are the numbers that each one's luck hangs on."""
    device = model.embedding.weight.device
    cache, output, _, counts = prefill(model, prompts, c.max_tokens)
    alive = torch.arange(len(prompts), device=device)
    names = alive if requests is None else torch.tensor(requests, device=device)
    hidden = last(output.hidden, counts)
    responses: list[list[int]] = [[] for _ in prompts]
    for step in range(c.max_tokens):
        p = distribution(model.logits(hidden), c.temperature, c.top_p)
        chosen = draw(p, uniforms(c.seed, names[alive], torch.full_like(alive, step), COMMIT))
        going = []
        for row, (index, token) in enumerate(zip(alive.tolist(), chosen.tolist(), strict=True)):
            if not ended(responses[index], c):
                responses[index].append(token)
                if not ended(responses[index], c):
                    going.append(row)
        if not going:
            break
        if len(going) < 0.75 * len(alive):
            rows = torch.tensor(going, device=device)
            alive, chosen, cache = alive[rows], chosen[rows], cache.keep(rows)
        hidden = model(chosen[:, None], cache).hidden[:, 0]
    return [cut(response, c) for response in responses]


def ended(tokens: list[int], c: Decoding) -> bool:
    """Return whether a response is complete."""
    if len(tokens) >= c.max_tokens:
        return True
    return c.stop is not None and c.stop in tokens and len(tokens) > tokens.index(c.stop) + c.extra
