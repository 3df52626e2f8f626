"""The drafters that are timed: one pass for a whole block, or one pass per token.

Shapes: R requests, k the draft length, N = R (1 + k) tokens that the last step verified, m fused
hidden states; otherwise as in `network`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark_sim.model.timing.network import Layer, Turn, choose, new_cache
from dspark_sim.model.timing.plan import Group, Plan

if TYPE_CHECKING:
    from dspark_sim.model.timing.attention import Kernel
    from dspark_sim.model.timing.network import Network, Weights
    from dspark_sim.model.timing.sizes import ModelSizes

EAGLE_FEATURES = 3


class Drafter:
    """What both have in common: layers with caches of their own, and the target's hidden states."""

    def __init__(
        self, target: Network, new: Weights, slots: int, layers: int, features: int, per_token: int
    ) -> None:
        self.target, self.sizes = target, target.sizes
        inputs = per_token * self.sizes.hidden_size
        self.layers = [Layer(self.sizes, new, inputs) for _ in range(layers)]
        self.caches = [new_cache(self.sizes, new, slots) for _ in range(layers)]
        self.fuse = new(self.sizes.hidden_size, features * self.sizes.hidden_size)
        self.final_norm = new.ones(self.sizes.hidden_size)
        self.features = features

    def norm(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, (x.shape[-1],), self.final_norm)

    def layer_numbers(self, inputs: int) -> float:
        """Weights of one of its layers."""
        sizes, d = self.sizes, self.sizes.hidden_size
        wider = (inputs - 1) * d * (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim
        return sizes.attention_weights + wider + sizes.mlp_weights(sizes.experts_per_token or 1)


class BlockDrafter(Drafter):
    """DSpark's drafter (arXiv 2607.05147, section 3.1): KV injection, one pass, Markov head."""

    def __init__(self, target: Network, new: Weights, slots: int) -> None:
        sizes = target.sizes
        super().__init__(target, new, slots, sizes.draft_layers, sizes.draft_features, 1)
        self.mask = new(sizes.hidden_size)
        self.previous = new(sizes.vocab_size, sizes.draft_rank)
        self.bias = new(sizes.vocab_size, sizes.draft_rank)
        self.confidence = new(1, sizes.hidden_size + sizes.draft_rank)

    def plans(self, requests: int, length: int, span: int) -> list[tuple[Group, bool]]:
        """Return the batches it runs, and whether they are causal: new tokens, then the block."""
        new, block = (1 + length,) * requests, (length,) * requests
        return [(Group(new, span), True), (Group(block, span), False)]

    def propose(
        self, states: Tensor, anchors: Tensor, luck: Tensor, plans: list[Plan], kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        """Return drafts (R, k) and confidences (R, k) after anchors (R,).

        `states` (N, m d) are the target's hidden states of the tokens since the last draft.
        """
        known, block = plans
        requests = len(anchors)
        length = block.tokens // requests
        fused = self.norm(F.linear(states, self.fuse))
        turn = Turn.at(known.positions, self.sizes.head_dim, fused.dtype)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            layer.inject(fused, turn, cache, known)
        masks = self.mask.expand(requests, length - 1, -1)
        first = F.embedding(anchors, self.target.embedding)[:, None]
        x = torch.cat([first, masks], 1).flatten(0, 1)
        turn = Turn.at(block.positions, self.sizes.head_dim, x.dtype)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = layer(x, layer.norm(x, layer.norm_1), turn, cache, block, kernel)
        hidden = self.norm(x).view(requests, length, -1)
        return self._in_turn(hidden, anchors, luck)

    def _in_turn(self, hidden: Tensor, anchors: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
        logits, token = F.linear(hidden, self.target.head), anchors
        drafts, confidences = [], []
        for k in range(hidden.shape[1]):
            before = F.embedding(token, self.previous)
            token, _ = choose(logits[:, k] + F.linear(before, self.bias), luck)
            drafts.append(token)
            joined = torch.cat([hidden[:, k], before], -1)
            confidences.append(F.linear(joined, self.confidence).squeeze(-1).sigmoid())
        return torch.stack(drafts, 1), torch.stack(confidences, 1)

    def traffic(self, requests: int, length: int, span: int, itemsize: int) -> tuple[float, float]:
        """Return the fewest bytes a draft moves and its floating-point operations."""
        s, d = self.sizes, self.sizes.hidden_size
        layers, tokens, new = s.draft_layers, requests * length, requests * (1 + length)
        once = layers * self.layer_numbers(1) + self.fuse.numel() + s.vocab_size * d
        markov = s.vocab_size * s.draft_rank
        cached = layers * s.kv_numbers * (requests * span + new)
        inject = self.fuse.numel() + layers * s.kv_numbers * d
        pairs = 2 * layers * s.num_heads * s.head_dim * tokens * span
        work = tokens * (layers * self.layer_numbers(1) + s.vocab_size * d + markov)
        return itemsize * (once + length * markov + cached), 2.0 * (work + new * inject + pairs)


class StepDrafter(Drafter):
    """EAGLE-3's drafter: one layer that reads [token; feature], once per drafted token."""

    def __init__(self, target: Network, new: Weights, slots: int) -> None:
        super().__init__(target, new, slots, 1, EAGLE_FEATURES, 2)
        sizes = target.sizes
        self.head = new(min(sizes.draft_vocab_size, sizes.vocab_size), sizes.hidden_size)

    def plans(self, requests: int, length: int, span: int) -> list[tuple[Group, bool]]:
        """Return the batches it runs: all new tokens in the first pass, then one each."""
        new = Group((1 + length,) * requests, span)
        return [(new, True), (Group((1,) * requests, span), True)]

    def propose(
        self, states: Tensor, anchors: Tensor, luck: Tensor, plans: list[Plan], kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        """Return drafts (R, k) and their probabilities (R, k); see `BlockDrafter.propose`."""
        requests = len(anchors)
        length = plans[0].tokens // requests - 1
        tokens = anchors[:, None].expand(-1, 1 + length).flatten()
        x = self._pass(F.linear(states, self.fuse), tokens, plans[0], kernel)
        x = x[length :: 1 + length]
        drafts, chances = [], []
        for k in range(length):
            token, p = choose(F.linear(self.norm(x), self.head), luck)
            drafts.append(token)
            chances.append(p.gather(-1, token[:, None]).squeeze(-1))
            if k + 1 < length:
                x = self._pass(x, token, plans[1], kernel)
        return torch.stack(drafts, 1), torch.stack(chances, 1)

    def _pass(self, feature: Tensor, tokens: Tensor, plan: Plan, kernel: Kernel) -> Tensor:
        (layer,), (cache,) = self.layers, self.caches
        embedded = self.norm(F.embedding(tokens, self.target.embedding))
        entering = torch.cat([embedded, layer.norm(feature, layer.norm_1)], -1)
        turn = Turn.at(plan.positions, self.sizes.head_dim, feature.dtype)
        return layer(feature, entering, turn, cache, plan, kernel)

    def traffic(self, requests: int, length: int, span: int, itemsize: int) -> tuple[float, float]:
        """Return the fewest bytes a draft moves and its floating-point operations."""
        s = self.sizes
        layer, head = self.layer_numbers(2), self.head.numel()
        cached = length * s.kv_numbers * requests * span
        first, later = requests * (1 + length), requests * (length - 1)
        pairs = 2 * s.num_heads * s.head_dim * span * (first + later)
        work = (first + later) * layer + requests * length * head + first * self.fuse.numel()
        moved = length * (layer + head) + self.fuse.numel() + cached
        return itemsize * moved, 2.0 * (work + pairs)


def new_drafters(
    target: Network, new: Weights, slots: int
) -> dict[str, BlockDrafter | StepDrafter]:
    """Return both drafters of a target, by the name a profile gives their kind."""
    return {
        "block": BlockDrafter(target, new, slots),
        "autoregressive": StepDrafter(target, new, slots),
    }


def drafter_weights(sizes: ModelSizes) -> int:
    """Return about how many weights both drafters add."""
    layer = sizes.attention_weights + sizes.mlp_weights(sizes.experts_per_token or 1)
    markov = 2 * sizes.vocab_size * sizes.draft_rank
    fuse = (sizes.draft_features + EAGLE_FEATURES) * sizes.hidden_size**2
    head = sizes.draft_vocab_size * sizes.hidden_size
    return int((sizes.draft_layers + 2) * layer + markov + fuse + head)
