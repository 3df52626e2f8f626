"""Prompt lookup: propose what followed the last occurrence of the latest tokens. No training."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_sim.model.drafters.base import Block, Context, Drafter, Prediction

_LONGEST, _CONFIDENCE = 3, 0.5


class NGram(Drafter):
    """Copies the γ tokens after the most recent earlier match of the longest suffix (3, 2, 1).

    Each proposal has probability one. Where nothing matches, and past the end of what is known,
    the anchor is repeated. The confidence is a constant.
    """

    def project(self, features: Tensor, next_tokens: Tensor, positions: Tensor) -> list[Tensor]:
        """Return the tokens (R, W) that followed each position; features are not used."""
        return [next_tokens]

    def begin(self, context: Context, anchors: Tensor, positions: Tensor) -> Block:
        """Look every block's suffix up; the token at position n is array entry n − 1."""
        proposals = anchors[..., None].expand(*anchors.shape, self.gamma).clone()
        history = context.arrays[0].cpu()
        for r in range(anchors.shape[0]):
            for a in range(anchors.shape[1]):
                found = _continuation(history[r, : int(positions[r, a])], self.gamma)
                proposals[r, a, : len(found)] = found.to(anchors.device)
        return Block(context, positions, state={"proposals": proposals})

    def step(self, block: Block, previous: Tensor) -> Prediction:
        """Return logits that leave nothing but the proposal."""
        proposal = block.state["proposals"][..., block.index]
        block.index += 1
        logits = torch.full((*proposal.shape, self.target.vocab_size), -torch.inf)
        logits = logits.to(proposal.device).scatter(-1, proposal[..., None], 0.0)
        certainty = torch.tensor(_CONFIDENCE, device=proposal.device).logit()
        return Prediction(logits, certainty.expand(proposal.shape))


def _continuation(known: Tensor, length: int) -> Tensor:
    for size in range(min(_LONGEST, len(known) - 1), 0, -1):
        windows = known[:-1].unfold(0, size, 1)
        matches = (windows == known[-size:]).all(1).nonzero()
        if len(matches):
            start = int(matches[-1]) + size
            return known[start : start + length]
    return known[:0]
