"""A decoder-only model with random weights at its true dimensions, and its drafters.

RMSNorm, fused projections of queries, keys and values, rotary positions, grouped-query attention on
a KV cache, SwiGLU or a mixture of experts. Shapes: N rows (tokens of all requests), d hidden size,
H and G query and key heads, D head size, V vocabulary, S cache slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from dspark_sim.model.timing.attention import Kernel
    from dspark_sim.model.timing.plan import Plan
    from dspark_sim.model.timing.sizes import ModelSizes


@dataclass(frozen=True)
class Weights:
    """Makes random weights of one kind of number on one device."""

    device: torch.device
    dtype: torch.dtype
    chance: torch.Generator

    def __call__(self, *shape: int) -> Tensor:
        """Return small random numbers, (out, in) for a projection."""
        made = torch.empty(shape, device=self.device, dtype=self.dtype)
        return made.uniform_(-0.035, 0.035, generator=self.chance)

    def ones(self, size: int) -> Tensor:
        """Return the scale of a norm."""
        return torch.ones(size, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Turn:
    """Cosines and signed sines (N, 1, D) of the rows' positions."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, head_dim: int, dtype: torch.dtype) -> Turn:
        """Return the rotary embedding of positions (N,)."""
        steps = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
        angles = positions[:, None].float() * 1e6**-steps
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return cls(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])

    def apply(self, x: Tensor) -> Tensor:
        """Rotate heads (N, H, D), first half against second."""
        swapped = x.view(*x.shape[:-1], 2, -1).flip(-2).flatten(-2)
        return torch.addcmul(x * self.cos, swapped, self.sin)


class Layer:
    """One pre-norm transformer layer; `inputs` numbers per token enter its attention."""

    def __init__(self, sizes: ModelSizes, new: Weights, inputs: int | None = None) -> None:
        d, heads = sizes.hidden_size, sizes.num_heads + 2 * sizes.num_kv_heads
        self.sizes = sizes
        self.norm_1, self.norm_2 = new.ones(d), new.ones(d)
        self.head_norm = new.ones(sizes.head_dim)
        self.qkv = new(heads * sizes.head_dim, inputs or d)
        self.out = new(d, sizes.num_heads * sizes.head_dim)
        self.experts = sizes.experts if inputs is None else 0
        lead = (self.experts,) if self.experts else ()
        width = sizes.intermediate_size
        if sizes.experts and not self.experts:
            width *= sizes.experts_per_token
        self.gate_up, self.down = new(*lead, 2 * width, d), new(*lead, d, width)
        self.router = new(self.experts, d) if self.experts else None

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, (x.shape[-1],), weight)

    def project(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries (N, H, D), rotated keys and values (N, G, D) of x (N, inputs)."""
        sizes = self.sizes
        heads = F.linear(x, self.qkv).view(len(x), -1, sizes.head_dim)
        values = sizes.num_heads + sizes.num_kv_heads
        turned, v = heads[:, :values], heads[:, values:]
        if sizes.qk_norm:
            turned = self.norm(turned, self.head_norm)
        turned = turn.apply(turned)
        return turned[:, : sizes.num_heads], turned[:, sizes.num_heads :], v

    def inject(self, x: Tensor, turn: Turn, cache: Tensor, plan: Plan) -> None:
        """Write keys and values of x (N, inputs) into the cache without attending to anything."""
        sizes = self.sizes
        made = F.linear(x, self.qkv[sizes.num_heads * sizes.head_dim :])
        k, v = made.view(len(x), 2, -1, sizes.head_dim).unbind(1)
        cache[0].index_copy_(0, plan.slots, turn.apply(k))
        cache[1].index_copy_(0, plan.slots, v)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Map (N, d) to (N, d): SwiGLU, or the chosen experts' weighted SwiGLU."""
        if self.router is None:
            gate, up = F.linear(x, self.gate_up).chunk(2, -1)
            return F.linear(F.silu(gate) * up, self.down)
        chosen = self.sizes.experts_per_token
        weight, expert = F.linear(x, self.router).float().softmax(-1).topk(chosen)
        order = expert.flatten().argsort()
        known = torch.arange(self.experts, device=x.device)
        ends = (expert.flatten()[:, None] == known).sum(0).cumsum(0).to(torch.int32)
        rows = order // chosen
        gate, up = self._by_expert(x[rows], self.gate_up, ends).chunk(2, -1)
        found = self._by_expert(F.silu(gate) * up, self.down, ends)
        found = found * weight.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(x).index_add_(0, rows, found)

    @staticmethod
    def _by_expert(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(x, weight.transpose(-2, -1), offs=ends)

    def __call__(
        self, x: Tensor, entering: Tensor, turn: Turn, cache: Tensor, plan: Plan, kernel: Kernel
    ) -> Tensor:
        """Run rows through the layer.

        Parameters
        ----------
        x, entering : (N, d) residual stream and (N, inputs) what attention reads of it, normed
        cache : (2, S + 1, G, D) the layer's keys and values; the rows' own are written first
        """
        q, k, v = self.project(entering, turn)
        cache[0].index_copy_(0, plan.slots, k)
        cache[1].index_copy_(0, plan.slots, v)
        x = x + F.linear(kernel(q, cache[0], cache[1], plan).flatten(1), self.out)
        return x + self.feed_forward(self.norm(x, self.norm_2))


class Network:
    """The target: embedding, layers, LM head; `caches` are one KV cache per layer."""

    def __init__(self, sizes: ModelSizes, new: Weights, layers: int, slots: int) -> None:
        self.sizes = sizes
        self.embedding = new(sizes.vocab_size, sizes.hidden_size)
        self.head = self.embedding if sizes.tied else new(sizes.vocab_size, sizes.hidden_size)
        self.final_norm = new.ones(sizes.hidden_size)
        self.layers = [Layer(sizes, new) for _ in range(layers)]
        self.caches = [new_cache(sizes, new, slots) for _ in self.layers]

    def logits(
        self, tokens: Tensor, plan: Plan, kernel: Kernel, rows: Tensor | None, layers: int
    ) -> Tensor:
        """Return logits (Z, V) of `rows` (Z,), of all by default, of tokens (N,)."""
        x = F.embedding(tokens, self.embedding)
        turn = Turn.at(plan.positions, self.sizes.head_dim, x.dtype)
        for layer, cache in zip(self.layers[:layers], self.caches, strict=False):
            x = layer(x, layer.norm(x, layer.norm_1), turn, cache, plan, kernel)
        x = F.rms_norm(x, (x.shape[-1],), self.final_norm)
        return F.linear(x if rows is None else x[rows], self.head)


def new_cache(sizes: ModelSizes, new: Weights, slots: int) -> Tensor:
    """Return random keys and values (2, S + 1, G, D); the last slot takes what padding writes."""
    shape = (2, slots + 1, sizes.num_kv_heads, sizes.head_dim)
    made = torch.empty(shape, device=new.device, dtype=new.dtype)
    return made.normal_(generator=new.chance)


def choose(logits: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens (Z,) drawn from logits (Z, V) by luck (Z,), and all probabilities (Z, V)."""
    p = logits.float().softmax(-1)
    drawn = torch.searchsorted(p.cumsum(-1), luck[: len(p), None] * 0.999)
    return drawn.squeeze(-1).clamp(max=p.shape[-1] - 1), p


def judge(p: Tensor, drafts: Tensor, luck: Tensor) -> Tensor:
    """Return which drafts (Z,) pass min(1, p_t / p_d) under p (Z, V), p_d being even.

    Each request's accepted prefix is the run of ones from its first row on: the host counts it.
    """
    chance = p.gather(-1, drafts[:, None]).squeeze(-1) * p.shape[-1]
    return luck < chance
