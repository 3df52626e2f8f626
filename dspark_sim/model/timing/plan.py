"""A batch laid out for the model: which token stands where, and which cached keys it sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = 256


def ragged_lengths(
    requests: int, tokens: int, longest: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """Return how many tokens each request has: at least 1, at most `longest`, `tokens` in all.

    The drafts are spread at random, as trimming does: a batch of B tokens is not B / (γ + 1)
    requests with full blocks.
    """
    places = np.repeat(np.arange(requests), longest - 1)
    chosen = rng.choice(places, tokens - requests, replace=False)
    return tuple(int(n) for n in 1 + np.bincount(chosen, minlength=requests))


@dataclass(frozen=True)
class Group:
    """Requests side by side whose KV caches all end, new tokens included, at position `span`.

    `prompt`: the new tokens are a chunk of a prompt, not an anchor with drafts.
    """

    lengths: tuple[int, ...]
    span: int
    prompt: bool = False

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.lengths)

    @property
    def width(self) -> int:
        """New tokens of the request that has most."""
        return max(self.lengths)

    @property
    def tokens(self) -> int:
        """New tokens of all requests."""
        return sum(self.lengths)

    @property
    def ragged(self) -> bool:
        """Whether requests differ in length."""
        return min(self.lengths) < self.width

    def kv_tokens(self) -> int:
        """KV tokens read as the simulator counts them: to an anchor, to the end of a chunk."""
        if self.prompt:
            return self.span * self.requests
        return sum(self.span - length + 1 for length in self.lengths)

    def pairs(self, causal: bool) -> int:
        """Query-key pairs of one head."""
        hidden = sum(n * (n - 1) // 2 for n in self.lengths) if causal else 0
        return self.tokens * self.span - hidden


@dataclass(frozen=True)
class Plan:
    """The tensors that attention and the KV cache need for one batch.

    Tokens of all groups stand one after the other. Request by request the cache holds `span`
    slots; the slot after the last one takes what padding writes.

    Parameters
    ----------
    groups : sequence of Group
    rows : int
        Rows that run: the number of tokens, or more where a captured size is padded.
    causal : bool
        A token sees what is before it; if not, all of its request's span.
    device : torch.device
    share : int
        Query heads to a key head, and
    dtype : torch.dtype
        the model's numbers: both shape the masks, which only the CPU needs.
    """

    groups: tuple[Group, ...]
    rows: int
    causal: bool
    device: torch.device
    share: int = 1
    dtype: torch.dtype = torch.float32

    @property
    def tokens(self) -> int:
        """Tokens that count."""
        return sum(group.tokens for group in self.groups)

    @property
    def cache_slots(self) -> int:
        """Cache slots that the requests hold."""
        return sum(group.requests * group.span for group in self.groups)

    @property
    def lengths(self) -> list[int]:
        """New tokens of every request."""
        return [length for group in self.groups for length in group.lengths]

    @property
    def spans(self) -> list[int]:
        """Cached positions of every request, new tokens included."""
        return [group.span for group in self.groups for _ in group.lengths]

    def _tensor(self, values: Sequence[int] | np.ndarray, kind: torch.dtype) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=kind, device=self.device)

    @cached_property
    def positions(self) -> Tensor:
        """(rows,) absolute position of every token; 0 where padded."""
        each = [
            np.arange(span - length, span)
            for length, span in zip(self.lengths, self.spans, strict=True)
        ]
        return self._tensor(_padded(np.concatenate(each), self.rows, 0), torch.long)

    @cached_property
    def slots(self) -> Tensor:
        """(rows,) cache slot that every token writes."""
        ends = np.cumsum(self.spans)
        each = [
            np.arange(end - length, end) for length, end in zip(self.lengths, ends, strict=True)
        ]
        slots = _padded(np.concatenate(each), self.rows, self.cache_slots)
        return self._tensor(slots, torch.long)

    @cached_property
    def query_starts(self) -> Tensor:
        """(requests + 1,) where each request's tokens begin, for variable-length kernels."""
        return self._tensor(np.cumsum([0, *self.lengths]), torch.int32)

    @cached_property
    def key_starts(self) -> Tensor:
        """(requests + 1,) where each request's cache slots begin."""
        return self._tensor(np.cumsum([0, *self.spans]), torch.int32)

    @cached_property
    def key_lengths(self) -> Tensor:
        """(requests,) cached positions of every request."""
        return self._tensor(self.spans, torch.int32)

    @cached_property
    def paged(self) -> bool:
        """Whether every request's slots are whole pages."""
        return all(group.span % PAGE == 0 for group in self.groups)

    @cached_property
    def block_table(self) -> Tensor:
        """(requests, pages) pages of every request."""
        pages = np.asarray(self.spans) // PAGE
        columns = np.arange(pages.max())
        first = np.cumsum(pages) - pages
        return self._tensor(np.minimum(first[:, None] + columns, pages.sum() - 1), torch.int32)

    @cached_property
    def pads(self) -> tuple[tuple[Tensor, Tensor] | None, ...]:
        """Per group, if ragged: the token at each padded place, and the place of each token.

        Tokens stand at the right end of their request's row, so that all rows end together.
        """
        return tuple(self._pad(group) if group.ragged else None for group in self.groups)

    def _pad(self, group: Group) -> tuple[Tensor, Tensor]:
        starts = np.cumsum([0, *group.lengths[:-1]])
        take = np.zeros((group.requests, group.width), dtype=np.int64)
        for row, (start, length) in enumerate(zip(starts, group.lengths, strict=True)):
            take[row, group.width - length :] = np.arange(start, start + length)
            take[row, : group.width - length] = start
        columns = np.arange(group.width)
        real = columns >= group.width - np.asarray(group.lengths)[:, None]
        back = np.flatnonzero(real.ravel())
        return self._tensor(take.ravel(), torch.long), self._tensor(back, torch.long)

    @cached_property
    def masks(self) -> tuple[Tensor | None, ...]:
        """Per group: (share x width, span), 0 where a key is seen and -inf where not; None: all."""
        return tuple(self._mask(group) for group in self.groups)

    def _mask(self, group: Group) -> Tensor | None:
        if group.width == 1 or not self.causal:
            return None
        ends = torch.arange(group.span - group.width, group.span, device=self.device)
        seen = torch.arange(group.span, device=self.device) <= ends[:, None]
        mask = torch.zeros(seen.shape, device=self.device, dtype=self.dtype)
        return mask.masked_fill(~seen, -torch.inf).repeat(self.share, 1)


def _padded(values: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return np.concatenate([values, np.full(rows - len(values), fill)])
