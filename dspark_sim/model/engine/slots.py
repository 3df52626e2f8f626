"""The engine's memory: a fixed number of slots, each with room for one request's KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark_sim.model.drafters.base import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.transformer import Transformer

Rows = slice | Tensor


@dataclass(frozen=True)
class SlotCache:
    """What is kept of the requests in S slots, allocated once.

    `keys` and `values` hold one (S, kv heads, capacity, D) tensor per layer of the target,
    `context` the drafter's arrays (S, capacity, …). How much of a slot is valid is the request's
    to know; what lies beyond is overwritten.
    """

    keys: list[Tensor]
    values: list[Tensor]
    context: list[Tensor]

    @classmethod
    def allocate(
        cls, target: Transformer, drafter: Drafter | None, slots: int, capacity: int
    ) -> SlotCache:
        """Return empty slots on the target's device."""
        cache = target.new_cache(slots, capacity)
        context = []
        if drafter is not None:
            c, weight = target.config, target.embedding.weight
            features = weight.new_zeros(1, 1, c.hidden_size * (1 + len(c.feature_layers)))
            nothing = torch.zeros(1, 1, dtype=torch.long, device=weight.device)
            with torch.no_grad():
                kept = drafter.project(features, nothing, nothing)
            context = [a.new_zeros(slots, capacity, *a.shape[2:]) for a in kept]
        return cls(cache.keys, cache.values, context)

    def context_of(self, rows: Rows, lengths: Tensor, span: int) -> Context:
        """Return the drafter's context of these slots: `lengths` (R,) positions, `span` at most."""
        return Context([array[rows, :span] for array in self.context], lengths)


def rows_of(slots: Sequence[int], device: torch.device) -> Rows:
    """Return how to select these rising slots: a slice, hence no copy, where none lies between."""
    if slots[-1] - slots[0] + 1 == len(slots):
        return slice(slots[0], slots[-1] + 1)
    return torch.tensor(slots, device=device)
