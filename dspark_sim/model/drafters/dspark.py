"""DSpark (arXiv 2607.05147, section 3.1): one parallel pass, then a light sequential head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark_sim.model.drafters.base import (
    Block,
    Context,
    Drafter,
    DrafterConfig,
    Prediction,
    attend_block,
    copy_layer,
)
from dspark_sim.model.drafters.heads import ConfidenceHead, MarkovHead, RNNHead
from dspark_sim.model.transformer import Layer, ModelConfig, RMSNorm, Transformer, rotary


class DSpark(Drafter):
    """Parallel backbone with KV injection (eqs. 2-4); the anchor is the first prediction position.

    Input: anchor embedding and γ − 1 mask embeddings; attention inside the block goes both ways.
    """

    masks_only = False

    def __init__(self, config: DrafterConfig, target: ModelConfig, embedding: Tensor) -> None:
        super().__init__(config, target, embedding)
        size = target.hidden_size
        self.fuse = nn.Linear(size * len(target.feature_layers), size, bias=False)
        self.fuse_norm = RMSNorm(size, target.norm_eps)
        self.mask = nn.Parameter(embedding.detach().mean(0))
        self.layers = nn.ModuleList(Layer(target) for _ in range(config.num_layers))
        self.norm = RMSNorm(size, target.norm_eps)
        self.head = _head(config, target, self.draft_vocab_size)
        rank = 0 if self.head is None else config.rank
        self.confidence_head = ConfidenceHead(size, rank) if config.confidence_head else None

    @torch.no_grad()
    def start_from(self, target: Transformer) -> None:
        """Start the draft layers from the target's last ones, the fusion from its last feature."""
        size = self.target.hidden_size
        self.fuse.weight.mul_(0.1)[:, -size:] += torch.eye(size)
        for layer, source in zip(self.layers, target.layers[-len(self.layers) :], strict=True):
            copy_layer(layer, source)  # type: ignore[arg-type]
        self.norm.load_state_dict(target.norm.state_dict())

    def project(self, features: Tensor, next_tokens: Tensor, positions: Tensor) -> list[Tensor]:
        """Return each layer's injected keys and values, (R, W, kv heads, D) each (eqs. 2, 3)."""
        fused = self.fuse_norm(self.fuse(features[..., : -self.target.hidden_size]))
        turn = rotary(positions, self.target.head_dim, self.target.rope_theta)
        return [t for layer in self.layers for t in layer.attention.keys_values(fused, *turn)]  # type: ignore[union-attr,operator]

    def begin(self, context: Context, anchors: Tensor, positions: Tensor) -> Block:
        """Run the backbone once for all γ positions of every block; h is (R, A, γ, d)."""
        width = self.gamma + self.masks_only
        steps = torch.arange(width, device=anchors.device)
        turn = rotary(positions[..., None] + steps, self.target.head_dim, self.target.rope_theta)
        masks = self.mask.expand(*anchors.shape, width - 1, -1)
        x = torch.cat([self.embed(anchors)[:, :, None], masks], dim=2)
        for index, layer in enumerate(self.layers):
            injected = (context.arrays[2 * index], context.arrays[2 * index + 1])
            q, k, v = layer.attention.project(layer.norm_1(x), *turn)  # type: ignore[union-attr,operator]
            x = x + attend_block(layer.attention, q, (k, v), injected, positions)  # type: ignore[arg-type]
            x = x + layer.mlp(layer.norm_2(x))  # type: ignore[operator]
        hidden = self.norm(x[:, :, 1:] if self.masks_only else x)
        return Block(context, positions, state={"hidden": hidden, "recurrent": None})

    def step(self, block: Block, previous: Tensor) -> Prediction:
        """Return softmax logits U_k + B_k (eq. 4) and the confidence logit (eq. 7)."""
        hidden = block.state["hidden"][:, :, block.index]
        block.index += 1
        logits, embedded = self.unembed(hidden), hidden[..., :0]
        if self.head is not None:
            embedded = self.head.previous(previous)
            block.state["recurrent"], bias = self.head(block.state["recurrent"], embedded, hidden)
            logits = logits + bias
        if self.confidence_head is None:
            return Prediction(logits)
        return Prediction(logits, self.confidence_head(hidden, embedded))


def _head(c: DrafterConfig, target: ModelConfig, draft_vocab: int) -> MarkovHead | RNNHead | None:
    if c.head == "markov":
        return MarkovHead(target.vocab_size, draft_vocab, c.rank)
    if c.head == "rnn":
        return RNNHead(target.vocab_size, draft_vocab, c.rank, target.hidden_size)
    return None
