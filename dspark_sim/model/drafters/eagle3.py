"""EAGLE-3 style drafter: one autoregressive layer on fused target features and its own outputs."""

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
from dspark_sim.model.transformer import Attention, Layer, ModelConfig, RMSNorm, Transformer, rotary


class Eagle3(Drafter):
    """One layer that reads [token embedding; feature] at every position.

    Entry i joins the target's fused features of position i with token i + 1 and predicts token
    i + 2. Past the anchor its own output stands in for the target's features, in training too
    (training-time test), for γ steps.
    """

    def __init__(self, config: DrafterConfig, target: ModelConfig, embedding: Tensor) -> None:
        super().__init__(config, target, embedding)
        size = target.hidden_size
        self.fuse = nn.Linear(self.feature_size, size, bias=False)
        self.token_norm = RMSNorm(size, target.norm_eps)
        self.layer = Layer(target)
        self.layer.attention = Attention(target, inputs=2 * size)
        self.norm = RMSNorm(size, target.norm_eps)

    @property
    def feature_size(self) -> int:
        """Numbers per position that it takes of the target."""
        return self.target.hidden_size * len(self.target.feature_layers)

    @torch.no_grad()
    def start_from(self, target: Transformer) -> None:
        """Start the layer from the target's last one, the fusion from its last feature."""
        size = self.target.hidden_size
        self.fuse.weight.mul_(0.1)[:, -size:] += torch.eye(size)
        copy_layer(self.layer, target.layers[-1])  # type: ignore[arg-type]
        nn.init.normal_(self.layer.attention.q.weight[:, :size], std=0.02)
        nn.init.normal_(self.layer.attention.k.weight[:, :size], std=0.02)
        nn.init.normal_(self.layer.attention.v.weight[:, :size], std=0.02)
        self.norm.load_state_dict(target.norm.state_dict())

    def chosen(self, features: Tensor) -> Tensor:
        """Return the part of the target's features (…, F) that it fuses."""
        return features[..., : self.feature_size]

    def project(self, features: Tensor, next_tokens: Tensor, positions: Tensor) -> list[Tensor]:
        """Return fused features (R, W, d), keys and values (R, W, kv heads, D) of the entries."""
        fused = self.fuse(self.chosen(features))
        turn = rotary(positions, self.target.head_dim, self.target.rope_theta)
        return [fused, *self.layer.attention.keys_values(self._read(fused, next_tokens), *turn)]

    def begin(self, context: Context, anchors: Tensor, positions: Tensor) -> Block:
        """Take the features of the position before each anchor as the first input."""
        fused = context.arrays[0]
        where = (positions - 1).clamp(min=0)[..., None].expand(-1, -1, fused.shape[-1])
        return Block(context, positions, state={"feature": fused.gather(1, where), "own": None})

    def step(self, block: Block, previous: Tensor) -> Prediction:
        """Read (feature, previous token), attend to the context and the block's own entries."""
        feature, layer = block.state["feature"], self.layer
        where = block.positions[..., None] - 1 + block.index
        turn = rotary(where, self.target.head_dim, self.target.rope_theta)
        q, k, v = layer.attention.project(self._read(feature, previous)[:, :, None], *turn)
        own, visible = block.state["own"], (block.positions - 1).clamp(min=0)
        own = (
            (k, v)
            if own is None
            else tuple(torch.cat([a, b], 2) for a, b in zip(own, (k, v), strict=True))
        )
        injected = (block.context.arrays[1], block.context.arrays[2])
        x = feature + attend_block(layer.attention, q, own, injected, visible)[:, :, 0]
        x = x + layer.mlp(layer.norm_2(x))
        block.state |= {"feature": x, "own": own}
        block.index += 1
        return Prediction(self.unembed(self.norm(x)))

    def _read(self, feature: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat([self.token_norm(self.embed(tokens)), self.layer.norm_1(feature)], dim=-1)
