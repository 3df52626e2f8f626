"""The verifier's arithmetic once more, in float64 numpy, token by token: an independent check."""

from __future__ import annotations

import numpy as np


def reference_logits(weights: dict[str, np.ndarray], c, tokens: list[int]) -> np.ndarray:
    """Logits (W, V) of a causal pass; `weights` by the names of a `Transformer`'s state dict."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["embedding.weight"][tokens]
    for i in range(c.num_layers):
        layer = {
            k.removeprefix(f"layers.{i}."): v for k, v in w.items() if k.startswith(f"layers.{i}.")
        }
        x = x + _attention(layer, c, _norm(x, layer["norm_1.weight"], c.norm_eps))
        h = _norm(x, layer["norm_2.weight"], c.norm_eps)
        gate = h @ layer["mlp.gate.weight"].T
        up = h @ layer["mlp.up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp.down.weight"].T
    return _norm(x, w["norm.weight"], c.norm_eps) @ w["embedding.weight"].T


def dequantize_q4_1(data: np.ndarray) -> np.ndarray:
    """Rows of GGUF Q4_1 blocks: float16 scale and minimum, then 32 nibbles, low halves first."""
    blocks = data.reshape(-1, 20)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float64)
    low = blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
    quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (scale * quants + low).reshape(data.shape[0], -1)


def dequantize_q8_0(data: np.ndarray) -> np.ndarray:
    """Rows of GGUF Q8_0 blocks: a float16 scale, then 32 signed bytes."""
    blocks = data.reshape(-1, 34)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float64)
    return (scale * blocks[:, 2:].copy().view(np.int8)).reshape(data.shape[0], -1)


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _attention(layer: dict[str, np.ndarray], c, x: np.ndarray) -> np.ndarray:
    size, count = c.head_dim, len(x)
    rates = c.rope_theta ** (-np.arange(0, size, 2) / size)
    turn = np.exp(1j * np.outer(np.arange(count), rates))

    def heads(name: str, number: int, rotated: bool) -> np.ndarray:
        y = (x @ layer[f"attention.{name}.weight"].T).reshape(count, number, size)
        if rotated:
            z = (y[..., 0::2] + 1j * y[..., 1::2]) * turn[:, None]
            y = np.stack([z.real, z.imag], -1).reshape(y.shape)
        return y

    q, k = heads("q", c.num_heads, True), heads("k", c.num_kv_heads, True)
    v = heads("v", c.num_kv_heads, False)
    out = np.zeros((count, c.num_heads, size))
    for h in range(c.num_heads):
        g = h // (c.num_heads // c.num_kv_heads)
        for t in range(count):
            score = k[: t + 1, g] @ q[t, h] / np.sqrt(size)
            p = np.exp(score - score.max())
            out[t, h] = p @ v[: t + 1, g] / p.sum()
    return out.reshape(count, -1) @ layer["attention.o.weight"].T
