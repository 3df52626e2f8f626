"""A toy Markov pair with known tables: the next token's law depends on the last token only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspark_sim.model.drafters import Block, Context, Drafter, Prediction, drafter_config
from dspark_sim.model.transformer import Output, model_config

# After token 0 the drafter never proposes 2, so every rejection leads to state 2, where it is poor.
TARGET_TABLE = torch.tensor([[0.5, 0.1, 0.4], [0.8, 0.1, 0.1], [0.25, 0.25, 0.5]])
DRAFT_TABLE = torch.tensor([[0.85, 0.13, 0.02], [0.6, 0.2, 0.2], [0.85, 0.1, 0.05]])


@dataclass
class ToyCache:
    """Nothing but lengths."""

    lengths: Tensor

    def keep(self, requests: Tensor) -> ToyCache:
        return ToyCache(self.lengths[requests])


class ToyTarget:
    """Stands in for a `Transformer`; its hidden state is the token, one-hot."""

    config = replace(model_config("nano"), name="toy", vocab_size=3)

    def __init__(self) -> None:
        self.embedding = torch.nn.Embedding(3, 3)

    def new_cache(self, requests: int, capacity: int) -> ToyCache:
        return ToyCache(torch.zeros(requests, dtype=torch.long))

    def __call__(self, tokens: Tensor, cache: ToyCache | None = None, counts=None) -> Output:
        if cache is not None:
            cache.lengths = cache.lengths + (tokens.shape[1] if counts is None else counts)
        return Output(torch.nn.functional.one_hot(tokens, 3).float())

    def logits(self, hidden: Tensor) -> Tensor:
        return (hidden @ TARGET_TABLE).log()


class ToyDrafter(Drafter):
    """Draws from its table; its confidence is its best token's probability."""

    def __init__(self, gamma: int = 4) -> None:
        config = drafter_config("dflash", num_speculative_tokens=gamma)
        super().__init__(config, ToyTarget.config, torch.zeros(3, 3))

    def project(self, features: Tensor, next_tokens: Tensor, positions: Tensor) -> list[Tensor]:
        return [next_tokens]

    def begin(self, context: Context, anchors: Tensor, positions: Tensor) -> Block:
        return Block(context, positions)

    def step(self, block: Block, previous: Tensor) -> Prediction:
        block.index += 1
        return Prediction(DRAFT_TABLE[previous].log())
