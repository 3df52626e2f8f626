"""What every drafter is: context from the target's hidden states, then a block token by token.

Shapes: R requests, W tokens, A blocks (anchors) per request, S context positions, k = 1..γ draft
positions, V' the drafter's vocabulary, F = (m + 1)·d the target's features (the m chosen layers and
the final hidden state). The anchor x_0 of a block stands at absolute position n; the target has
processed positions 0..n − 1, so that is the context the block may see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from dspark_sim.model.transformer import Attention, Layer, ModelConfig, Output, Transformer


@dataclass(frozen=True)
class DrafterConfig:
    """What a drafter is made of.

    `draft_ids` restricts what it can propose to these token ids (most frequent first); mass
    outside counts as not proposed, so probabilities stay exact.
    """

    kind: str
    num_speculative_tokens: int = 7
    num_layers: int = 2
    head: str = "none"  # none, markov (eq. 5) or rnn (eq. 6)
    rank: int = 128
    confidence_head: bool = False
    draft_ids: tuple[int, ...] | None = None


@dataclass
class Context:
    """What a drafter keeps of R requests: arrays (R, S, …), valid up to `lengths` (R,)."""

    arrays: list[Tensor]
    lengths: Tensor

    def append(self, new: list[Tensor], counts: Tensor) -> None:
        """Add the first `counts` (R,) of W new positions, arrays (R, W, …)."""
        width = new[0].shape[1]
        span, have = int(self.lengths.max()) + width, self.arrays[0].shape[1]
        where = self.lengths[:, None] + torch.arange(width, device=counts.device)
        rows = torch.arange(len(counts), device=counts.device)[:, None]
        if span > have:
            grown = max(span, have + have // 2)
            self.arrays = [_lengthen(array, grown) for array in self.arrays]
        for array, piece in zip(self.arrays, new, strict=True):
            array[rows, where] = piece
        self.lengths = self.lengths + counts

    def keep(self, requests: Tensor) -> Context:
        """Return the context of these requests, in this order."""
        return Context([a[requests] for a in self.arrays], self.lengths[requests])


@dataclass
class Block:
    """A block being drafted; `index` counts the positions already predicted."""

    context: Context
    positions: Tensor  # (R, A) of the anchors
    index: int = 0
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """One draft position: logits (R, A, V') and the confidence head's logit (R, A), if any."""

    logits: Tensor
    confidence_logit: Tensor | None = None


class Drafter(nn.Module, ABC):
    """A drafter with the target's embedding and LM head, frozen: no gradient reaches them."""

    embedding: Tensor
    head_weight: Tensor
    draft_ids: Tensor | None
    sorted_ids: Tensor  # the draft vocabulary in ascending order, and where each one stands
    sorted_place: Tensor

    def __init__(self, config: DrafterConfig, target: ModelConfig, embedding: Tensor) -> None:
        super().__init__()
        self.config, self.target = config, target
        frozen = embedding.detach()
        ids = None if config.draft_ids is None else torch.tensor(config.draft_ids)
        self.register_buffer("embedding", frozen, persistent=False)
        self.register_buffer("head_weight", frozen if ids is None else frozen[ids], False)
        self.register_buffer("draft_ids", ids, persistent=False)
        ordered = (None, None) if ids is None else ids.sort()
        self.register_buffer("sorted_ids", ordered[0], persistent=False)
        self.register_buffer("sorted_place", ordered[1], persistent=False)

    @property
    def gamma(self) -> int:
        """Draft length γ."""
        return self.config.num_speculative_tokens

    @property
    def draft_vocab_size(self) -> int:
        """V', the number of tokens it can propose."""
        return self.head_weight.shape[0]

    def start_from(self, target: Transformer) -> None:
        """Start from parts of the target where the drafter has room for them."""

    @abstractmethod
    def project(self, features: Tensor, next_tokens: Tensor, positions: Tensor) -> list[Tensor]:
        """Return what to keep, (R, W, …) each, of positions whose features (R, W, F) are known.

        `next_tokens` (R, W) are the tokens that followed each position.
        """

    @abstractmethod
    def begin(self, context: Context, anchors: Tensor, positions: Tensor) -> Block:
        """Start blocks with anchor tokens (R, A) at `positions` (R, A)."""

    @abstractmethod
    def step(self, block: Block, previous: Tensor) -> Prediction:
        """Predict the next position, given the token before it, (R, A); the anchor at first."""

    def new_context(self, features: Tensor, next_tokens: Tensor, counts: Tensor) -> Context:
        """Return the context after W positions from the start, `counts` (R,) of them valid."""
        positions = torch.arange(features.shape[1], device=features.device)[None]
        return Context(self.project(features, next_tokens, positions), counts)

    def extend(
        self, context: Context, features: Tensor, next_tokens: Tensor, counts: Tensor
    ) -> None:
        """Add `counts` (R,) more positions to the context; see `project`."""
        steps = torch.arange(features.shape[1], device=features.device)
        positions = context.lengths[:, None] + steps
        context.append(self.project(features, next_tokens, positions), counts)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the target's embeddings (…, d) of tokens (…)."""
        return F.embedding(tokens, self.embedding)

    def unembed(self, hidden: Tensor) -> Tensor:
        """Return the target's LM head on hidden states (…, d): logits (…, V')."""
        return F.linear(hidden, self.head_weight)

    def token_ids(self, index: Tensor) -> Tensor:
        """Return the token ids behind indices into the drafter's vocabulary."""
        return index if self.draft_ids is None else self.draft_ids[index]

    def full(self, probabilities: Tensor) -> Tensor:
        """Spread probabilities (…, V') over the target's vocabulary (…, V), zero elsewhere."""
        if self.draft_ids is None:
            return probabilities
        shape = (*probabilities.shape[:-1], self.target.vocab_size)
        out = probabilities.new_zeros(shape)
        out[..., self.draft_ids] = probabilities
        return out

    def confidence(self, prediction: Prediction, temperature: float = 1.0) -> Tensor:
        """Return c_k (R, A): the head's, or else max_v p_d(v) (at T = 0 that of T = 1)."""
        if prediction.confidence_logit is not None:
            return prediction.confidence_logit.float().sigmoid()
        return (prediction.logits.float() / (temperature or 1.0)).softmax(-1).amax(-1)


def all_features(output: Output) -> Tensor:
    """Return the target's features (R, W, F): chosen layers' states, then the final one."""
    return torch.cat([*output.features, output.hidden], dim=-1)


def attend_block(
    attention: Attention,
    queries: Tensor,
    own: tuple[Tensor, Tensor],
    context: tuple[Tensor, Tensor],
    visible: Tensor,
) -> Tensor:
    """Let each block attend to its request's context and to its own tokens (eq. 3).

    Blocks are packed densely: a block sees the context by its count of visible positions, no
    (A·W × S) mask is stored, and never sees another block.

    Parameters
    ----------
    queries
        (R, A, W, H, D).
    own
        Keys and values of the block itself, (R, A, U, kv heads, D), all visible.
    context
        Keys and values (R, S, kv heads, D).
    visible
        (R, A): the block sees context positions 0 .. visible − 1.

    Returns
    -------
    (R, A, W, d)
    """
    r, a, w, h, d = queries.shape
    g = attention.kv_heads
    q = queries.reshape(r, a, w, g, h // g, d).permute(0, 3, 1, 4, 2, 5) * d**-0.5
    far_k, far_v = (t.permute(0, 2, 1, 3) for t in context)  # (R, kv, S, D)
    near_k, near_v = (t.permute(0, 3, 1, 2, 4) for t in own)  # (R, kv, A, U, D)
    span, rows = far_k.shape[2], (h // g) * w
    far = (q.reshape(r, g, a * rows, d) @ far_k.transpose(-1, -2)).reshape(r, g, a, rows, span)
    near = q.reshape(r, g, a, rows, d) @ near_k.transpose(-1, -2)
    hidden = torch.arange(span, device=visible.device) >= visible[:, None, :, None, None]
    scores = torch.cat([far.float().masked_fill(hidden, -torch.inf), near.float()], dim=-1)
    weights = scores.softmax(-1).to(far_v.dtype)
    out = (weights[..., :span].reshape(r, g, a * rows, span) @ far_v).reshape(r, g, a, rows, d)
    out = out + weights[..., span:] @ near_v
    out = out.reshape(r, g, a, h // g, w, d).permute(0, 2, 4, 1, 3, 5)
    return attention.o(out.reshape(r, a, w, h * d))


def copy_layer(to: Layer, source: Layer) -> None:
    """Start a draft layer from a layer of the target; extra inputs in front start at zero."""
    state = source.state_dict()
    for name, value in to.state_dict().items():
        if value.shape == state[name].shape:
            value.copy_(state[name])
        else:
            value.zero_()
            value[:, -state[name].shape[1] :] = state[name]


def _lengthen(array: Tensor, length: int) -> Tensor:
    out = array.new_zeros(array.shape[0], length, *array.shape[2:])
    out[:, : array.shape[1]] = array
    return out
