"""The verifier: a decoder-only transformer that checks many requests in one forward pass.

RMSNorm, interleaved rotary embedding (GGUF's llama layout), grouped-query attention, SwiGLU.
Shapes: R requests, W tokens per request in this pass, S cached positions, H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspark_sim.core import unknown_name


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a verifier; `feature_layers` are the hidden states a drafter is given (eq. 2)."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    feature_layers: tuple[int, ...]
    max_position: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden_size // self.num_heads


CONFIGS = {
    row.name: row
    for row in (
        #           name           V    d    layers H kv  mlp  features
        ModelConfig("nano", 64, 32, 2, 2, 1, 64, (1, 2), 128),
        ModelConfig("tiny", 2048, 224, 6, 4, 2, 576, (2, 4, 6), 512),
        ModelConfig(
            "smollm2-135m", 49_152, 576, 30, 9, 3, 1536, (2, 15, 28), 8192, rope_theta=100_000.0
        ),
    )
}


def model_config(name: str) -> ModelConfig:
    """Return the sizes of a known verifier."""
    if name not in CONFIGS:
        raise unknown_name("model", name, CONFIGS)
    return CONFIGS[name]


@dataclass
class KVCache:
    """Keys and values of R requests; rolling back is setting `lengths` (R,).

    `keys` and `values` hold one (R, kv heads, capacity, D) tensor per layer. Whatever lies beyond
    a request's length is never attended to and is overwritten by its next tokens.
    """

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions per request."""
        have = self.keys[0].shape[2]
        if capacity > have:
            extra = max(capacity - have, have // 2)
            self.keys = [F.pad(k, (0, 0, 0, extra)) for k in self.keys]
            self.values = [F.pad(v, (0, 0, 0, extra)) for v in self.values]

    def keep(self, requests: Tensor) -> KVCache:
        """Return a cache that holds only these requests, in this order."""
        return KVCache(
            [k[requests] for k in self.keys],
            [v[requests] for v in self.values],
            self.lengths[requests],
        )


@dataclass
class Output:
    """Final normed hidden states (R, W, d) and the chosen layers' states, each (R, W, d)."""

    hidden: Tensor
    features: list[Tensor] = field(default_factory=list)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned scale."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (…, head_dim / 2) of absolute positions (…)."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * theta**-steps
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn neighbouring pairs of x (…, D) by angles whose cos, sin (…, D / 2) broadcast to it."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; reads `inputs` numbers per token."""

    def __init__(self, c: ModelConfig, inputs: int | None = None) -> None:
        super().__init__()
        inputs = inputs or c.hidden_size
        self.heads, self.kv_heads, self.head_dim = c.num_heads, c.num_kv_heads, c.head_dim
        self.q = nn.Linear(inputs, c.num_heads * c.head_dim, bias=False)
        self.k = nn.Linear(inputs, c.num_kv_heads * c.head_dim, bias=False)
        self.v = nn.Linear(inputs, c.num_kv_heads * c.head_dim, bias=False)
        self.o = nn.Linear(c.num_heads * c.head_dim, c.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries (…, H, D), rotated keys and values (…, kv heads, D) of x (…, d).

        `cos` and `sin` (…, D / 2) belong to the tokens of x.
        """
        q = self.q(x).unflatten(-1, (self.heads, -1))
        k, v = self.keys_values(x, cos, sin)
        return rotate(q, cos[..., None, :], sin[..., None, :]), k, v

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys and plain values, each (…, kv heads, D), of x (…, d)."""
        k = self.k(x).unflatten(-1, (self.kv_heads, -1))
        v = self.v(x).unflatten(-1, (self.kv_heads, -1))
        return rotate(k, cos[..., None, :], sin[..., None, :]), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return outputs (R, W, d) of q (R, H, W, D) on k, v (R, kv heads, S, D).

        `mask` (R or 1, 1, W, S) is True where a key is seen; plainly causal without one.
        """
        group = self.heads // self.kv_heads
        if mask is None:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # a group's queries side by side, so that the cache is not copied
            r, _, w, d = q.shape
            folded = q.reshape(r, self.kv_heads, group * w, d)
            seen = mask.repeat(1, 1, group, 1)
            out = F.scaled_dot_product_attention(folded, k, v, attn_mask=seen)
            out = out.reshape(r, self.heads, w, d)
        return self.o(out.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU feed-forward layer."""

    def __init__(self, size: int, intermediate: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, intermediate, bias=False)
        self.up = nn.Linear(size, intermediate, bias=False)
        self.down = nn.Linear(intermediate, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, d) to (…, d)."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """One transformer layer, pre-norm."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(c.hidden_size, c.norm_eps)
        self.attention = Attention(c)
        self.norm_2 = RMSNorm(c.hidden_size, c.norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)


class Transformer(nn.Module):
    """The verifier; its embedding is also the LM head (tied)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.apply(_initialise)
        for layer in self.layers:
            for last in (layer.attention.o, layer.mlp.down):  # type: ignore[union-attr]
                last.weight.data /= (2 * config.num_layers) ** 0.5  # type: ignore[union-attr]

    def new_cache(self, requests: int, capacity: int = 64) -> KVCache:
        """Return an empty cache for R requests."""
        c, weight = self.config, self.embedding.weight
        shape = (requests, c.num_kv_heads, capacity, c.head_dim)
        return KVCache(
            [weight.new_zeros(shape) for _ in self.layers],
            [weight.new_zeros(shape) for _ in self.layers],
            torch.zeros(requests, dtype=torch.long, device=weight.device),
        )

    def forward(
        self, tokens: Tensor, cache: KVCache | None = None, counts: Tensor | None = None
    ) -> Output:
        """Run tokens (R, W) through the model, all requests in one pass.

        Parameters
        ----------
        tokens
            (R, W), right-padded where requests differ in length.
        cache
            Extended in place: request r's tokens stand at positions lengths[r], lengths[r] + 1, …
            Without a cache the pass is plainly causal from position 0.
        counts
            (R,) valid tokens per request, W each by default; the cache grows by that much.
        """
        width = tokens.shape[1]
        steps = torch.arange(width, device=tokens.device)
        if cache is None:
            positions, mask = steps[None], None
        else:
            positions = cache.lengths[:, None] + steps
            span = int(cache.lengths.max()) + width
            cache.reserve(span)
            mask = (torch.arange(span, device=tokens.device) <= positions[..., None])[:, None]
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        x, features = self.embedding(tokens), []
        for index, layer in enumerate(self.layers):
            x = self._layer(index, layer, x, (cos, sin), positions, mask, cache)
            if index + 1 in self.config.feature_layers:
                features.append(x)
        if cache is not None:
            cache.lengths = cache.lengths + (width if counts is None else counts)
        return Output(self.norm(x), features)

    def _layer(  # type: ignore[no-untyped-def]
        self, index: int, layer, x: Tensor, turn, positions: Tensor, mask, cache
    ) -> Tensor:
        normed = layer.norm_1(x)
        q, k, v = (t.transpose(1, 2) for t in layer.attention.project(normed, *turn))
        if cache is not None:
            where = positions[:, None, :, None].expand_as(k)
            cache.keys[index].scatter_(2, where, k)
            cache.values[index].scatter_(2, where, v)
            span = mask.shape[-1]
            k, v = cache.keys[index][:, :, :span], cache.values[index][:, :, :span]
        x = x + layer.attention.attend(q, k, v, mask)
        return x + layer.mlp(layer.norm_2(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (…, V) of final hidden states (…, d)."""
        return F.linear(hidden, self.embedding.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
