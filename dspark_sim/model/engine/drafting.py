"""Batched drafting by rows, each with its own way of drawing tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark_sim.model.drafters import Prediction
from dspark_sim.model.sampling import DRAFT, block_counter, distribution, draw, uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dspark_sim.model.drafters import Context, Drafter
    from dspark_sim.model.engine.schedule import Request, Sampling


@dataclass(frozen=True)
class Rows:
    """R requests as tensors: what their luck hangs on, output positions and ways of drawing.

    `greedy`: no request of the step draws at random, so that probabilities are not needed.
    """

    names: Tensor  # (R,)
    starts: Tensor  # (R,)
    kinds: list[Sampling]
    greedy: bool
    seed: int

    @classmethod
    def of(cls, requests: Sequence[Request], seed: int, device: torch.device) -> Rows:
        """Return the rows of these requests; the next block begins after their output so far."""
        columns = [[r.name for r in requests], [len(r.tokens) for r in requests]]
        names, starts = torch.tensor(columns, device=device)
        kinds = [request.sampling for request in requests]
        return cls(names, starts, kinds, all(kind.temperature == 0 for kind in kinds), seed)

    def keep(self, where: Tensor) -> Rows:
        """Return the rows at these places."""
        kinds = [self.kinds[place] for place in where.tolist()]
        return replace(self, names=self.names[where], starts=self.starts[where], kinds=kinds)

    def luck(self, width: int, stream: int) -> Tensor:
        """Return uniform numbers (R, width) of the blocks that begin at `starts`."""
        columns = torch.arange(width, device=self.starts.device)
        counters = block_counter(self.starts[:, None], 0) + columns
        return uniforms(self.seed, self.names[:, None], counters, stream)


@dataclass(frozen=True)
class SlotDraft:
    """Blocks of K tokens (R, K) with confidences (R, K).

    Unless all is greedy, `chance` (R, K) are the drafted tokens' own probabilities and `stack`
    (R, K, V') those of the drafter's whole vocabulary.
    """

    tokens: Tensor
    confidence: Tensor
    chance: Tensor | None = None
    stack: Tensor | None = None

    def spread(self, where: Tensor, rows: int) -> SlotDraft:
        """Return the drafts of `rows` requests of which only those at `where` have drafted."""

        def at(array: Tensor | None) -> Tensor | None:
            if array is None:
                return None
            return array.new_zeros(rows, *array.shape[1:]).index_copy(0, where, array)

        tokens, confidence, chance, stack = map(at, vars(self).values())
        assert tokens is not None
        assert confidence is not None
        return SlotDraft(tokens, confidence, chance, stack)


def per_kind(
    kinds: Sequence[Sampling], array: Tensor, function: Callable[[Tensor, Sampling], Tensor]
) -> Tensor:
    """Apply a function of rows (n, …) and their way of drawing to all rows of an array."""
    found = set(kinds)
    if len(found) == 1:
        return function(array, kinds[0])
    rows = [[i for i, own in enumerate(kinds) if own == kind] for kind in found]
    parts = [function(array[own], kind) for own, kind in zip(rows, found, strict=True)]
    order = torch.tensor([i for own in rows for i in own], device=array.device)
    return torch.cat(parts)[order.argsort()]


def distributions(logits: Tensor, kinds: Sequence[Sampling]) -> Tensor:
    """Return the probabilities (n, V) that tokens are drawn from, row by row in its own way."""
    return per_kind(kinds, logits, lambda x, kind: distribution(x, kind.temperature, kind.top_p))


def draft_rows(
    drafter: Drafter, context: Context, anchors: Tensor, rows: Rows, length: int, report: bool
) -> SlotDraft:
    """Draft `length` tokens after anchors (R,); the same tokens as `speculate.draft_block`.

    `report` asks for confidences; without it they are 0.
    """
    block = drafter.begin(context, anchors[:, None], context.lengths[:, None])
    luck = None if rows.greedy else rows.luck(length, DRAFT)
    previous, tokens, confidence, stack, chance = anchors, [], [], [], []
    for k in range(length):
        prediction = drafter.step(block, previous[:, None])
        logits = prediction.logits[:, 0]
        if luck is None:
            index = logits.argmax(-1)
        else:
            p = distributions(logits, rows.kinds)
            index = draw(p, luck[:, k])
            chance.append(p.gather(-1, index[:, None])[:, 0])
            stack.append(p)
        previous = drafter.token_ids(index)
        tokens.append(previous)
        if report:
            confidence.append(_confidence(drafter, prediction, rows.kinds))
    drafted = torch.stack(tokens, 1)
    reported = torch.stack(confidence, 1) if report else torch.zeros(drafted.shape)
    if luck is None:
        return SlotDraft(drafted, reported)
    return SlotDraft(drafted, reported, torch.stack(chance, 1), torch.stack(stack, 1))


def _confidence(drafter: Drafter, prediction: Prediction, kinds: Sequence[Sampling]) -> Tensor:
    """Return c_k (R,); the drafter's own unless it depends on how a request draws."""
    if prediction.confidence_logit is not None:
        return drafter.confidence(prediction)[:, 0]
    return per_kind(
        kinds,
        prediction.logits,
        lambda logits, kind: drafter.confidence(Prediction(logits), kind.temperature)[:, 0],
    )
