"""Distributions, draws and luck: every random number is a hash of what it decides."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

DRAFT, ACCEPT, COMMIT = 0, 1, 2
_STREAMS, _STRIDE = 4, 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seed: int, requests: Tensor, counters: Tensor, stream: int) -> Tensor:
    """Return numbers in (0, 1), float64, one per (request, counter); shapes broadcast.

    Splitmix64 read at a counter, so a request's luck depends on nothing else in the batch.
    """
    who, at = np.broadcast_arrays(requests.cpu().numpy(), counters.cpu().numpy())
    key = _mix(
        _mix(np.full(who.shape, seed, np.uint64) + _GOLDEN)
        + (who.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    )
    count = at.astype(np.uint64) * np.uint64(_STREAMS) + np.uint64(stream + 1)
    bits = _mix(key + count * _GOLDEN) >> np.uint64(11)
    return torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-53).to(requests.device)


def block_counter(start: Tensor, index: int) -> Tensor:
    """Return the counter of draft position `index` of blocks that begin at `start`."""
    return start * _STRIDE + index


def distribution(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Return the probabilities (…, V) that tokens are drawn from; T = 0 is all on the argmax."""
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, best, 1.0)
    p = (logits.float() / temperature).softmax(-1)
    if top_p >= 1:
        return p
    ordered, index = p.sort(-1, descending=True)
    kept = ordered * (ordered.cumsum(-1) - ordered < top_p)
    p = torch.zeros_like(p).scatter_(-1, index, kept)
    return p / p.sum(-1, keepdim=True)


def draw(probabilities: Tensor, u: Tensor) -> Tensor:
    """Return token indices (…) drawn from (…, V) by inversion of uniform numbers (…)."""
    cumulative = probabilities.double().cumsum(-1)
    goal = (u.double() * cumulative[..., -1]).unsqueeze(-1)
    index = torch.searchsorted(cumulative, goal, right=True).squeeze(-1)
    return index.clamp(max=probabilities.shape[-1] - 1)


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """Return norm(max(0, p − q)) (…, V), what a rejected position is drawn from; p where p = q."""
    rest = (target - draft).clamp(min=0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp(min=1e-30), target)
