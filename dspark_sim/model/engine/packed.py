"""One target pass over a packed batch: M tokens of many requests, none of them padding.

Everything but attention works on (M, …). Attention runs per group: the decoding requests in one
call, padded to the longest, and every prefill chunk in its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark_sim.model.engine.slots import Rows, SlotCache, rows_of
from dspark_sim.model.transformer import Output, rotary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.model.transformer import Attention, Layer, Transformer


@dataclass(frozen=True)
class Piece:
    """The tokens of one request in a pass; the first stands at position `start`."""

    slot: int
    start: int
    tokens: Sequence[int]


@dataclass(frozen=True)
class _Group:
    """R requests that attend in one call, W tokens each at most.

    `place` (R, W) tells where a token stands in the batch, `real` which of R·W are tokens (None:
    all), `seen` (R, 1, G·W, span) what they see (None: everything), for G query heads per KV head.
    """

    rows: Rows
    place: Tensor
    real: Tensor | None
    seen: Tensor | None
    span: int


@dataclass(frozen=True)
class PackedBatch:
    """Tokens (M,) with their slots and positions, request after request."""

    tokens: Tensor
    slots: Tensor
    positions: Tensor
    groups: list[_Group]


def pack(
    decodes: Sequence[Piece], chunks: Sequence[Piece], queries: int, device: torch.device
) -> PackedBatch:
    """Return a batch of decoding requests, in order of slots, and prefill chunks after them.

    `queries` are the query heads per KV head.
    """
    pieces = [*decodes, *chunks]
    first = list(accumulate((len(p.tokens) for p in pieces), initial=0))
    columns = [
        [t for p in pieces for t in p.tokens],
        [p.slot for p in pieces for _ in p.tokens],
        [p.start + i for p in pieces for i in range(len(p.tokens))],
    ]
    groups = [_group(decodes, first, queries, device)] if decodes else []
    for piece, place in zip(chunks, first[len(decodes) :], strict=False):
        groups.append(_group([piece], [place], queries, device))
    tokens, slots, positions = torch.tensor(columns, device=device)
    return PackedBatch(tokens, slots, positions, groups)


def _group(
    pieces: Sequence[Piece], first: Sequence[int], queries: int, device: torch.device
) -> _Group:
    counts = [len(p.tokens) for p in pieces]
    span = max(p.start + n for p, n in zip(pieces, counts, strict=True))
    steps = torch.arange(max(counts), device=device)
    start, begin, count = torch.tensor(
        [[p.start for p in pieces], list(first[: len(pieces)]), counts], device=device
    )
    seen = None
    if len(pieces) > 1 or counts[0] > 1:
        position = (start[:, None] + steps)[:, None, :, None]
        seen = (torch.arange(span, device=device) <= position).repeat(1, 1, queries, 1)
    real = None
    if min(counts) < max(counts):
        real = (steps < count[:, None]).flatten().nonzero()[:, 0]
    place = begin[:, None] + torch.minimum(steps, count[:, None] - 1)
    return _Group(rows_of([p.slot for p in pieces], device), place, real, seen, span)


def packed_forward(model: Transformer, batch: PackedBatch, cache: SlotCache) -> Output:
    """Run a batch through the target: hidden states (M, d) and features, each (M, d).

    Keys and values are written into the slots; the features are the layers that drafters read.
    """
    c = model.config
    turn = rotary(batch.positions, c.head_dim, c.rope_theta)
    x, features = model.embedding(batch.tokens), []
    for index, layer in enumerate(model.layers):
        x = _layer(layer, x, turn, batch, cache.keys[index], cache.values[index])  # type: ignore[arg-type]
        if index + 1 in c.feature_layers:
            features.append(x)
    return Output(model.norm(x), features)


def _layer(
    layer: Layer,
    x: Tensor,
    turn: tuple[Tensor, Tensor],
    batch: PackedBatch,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    q, k, v = layer.attention.project(layer.norm_1(x), *turn)
    keys[batch.slots, :, batch.positions] = k
    values[batch.slots, :, batch.positions] = v
    pieces = [_attend(layer.attention, q, keys, values, group) for group in batch.groups]
    x = x + layer.attention.o(torch.cat(pieces) if len(pieces) > 1 else pieces[0])
    return x + layer.mlp(layer.norm_2(x))


def _attend(attention: Attention, q: Tensor, keys: Tensor, values: Tensor, group: _Group) -> Tensor:
    """Return (m, H·D) of a group's tokens; a KV head's queries lie side by side."""
    r, w = group.place.shape
    heads, size = attention.kv_heads, attention.head_dim
    own = q[group.place].view(r, w, heads, -1, size).permute(0, 2, 3, 1, 4)  # (R, kv, G, W, D)
    k, v = (t[:, :, : group.span][group.rows] for t in (keys, values))
    out = F.scaled_dot_product_attention(own.flatten(2, 3), k, v, attn_mask=group.seen)
    out = out.reshape(r, heads, -1, w, size).permute(0, 3, 1, 2, 4).reshape(r * w, -1)
    return out if group.real is None else out[group.real]
