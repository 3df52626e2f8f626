"""Lookup rules: what a batch between two measured sizes costs, inside the table and beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Sizes = NDArray[np.int64]
    Costs = NDArray[np.float64]

Rule = Literal["captured", "linear", "floor"]


def next_size(sizes: Sizes, ms: Costs, at: Sizes) -> Costs:
    """Cost of the next measured size: a CUDA graph is padded up to the size it was captured for."""
    return ms[np.minimum(np.searchsorted(sizes, at, side="left"), len(sizes) - 1)]


def size_below(sizes: Sizes, ms: Costs, at: Sizes) -> Costs:
    """Cost of the measured size at or below: SGLang's floor probe (`bisect_right - 1`)."""
    return ms[np.maximum(np.searchsorted(sizes, at, side="right") - 1, 0)]


def between(sizes: Sizes, ms: Costs, at: Sizes) -> Costs:
    """Linear interpolation, held at the first and last measured point outside of them."""
    return np.interp(at, sizes, ms)


def beyond_end(sizes: Sizes, ms: Costs, at: Sizes) -> Costs:
    """Cost past the last point along the last measured slope, as vLLM extrapolates its tail.

    A falling slope, or a single point, is held constant: a larger batch is never made cheaper.
    """
    slope = 0.0
    if len(sizes) > 1:
        slope = max(0.0, float(ms[-1] - ms[-2]) / float(sizes[-1] - sizes[-2]))
    last = float(ms[-1])
    return last + slope * (at - sizes[-1])


@dataclass(frozen=True)
class Curve:
    """One measured cost curve with the rule that reads it.

    Parameters
    ----------
    sizes : array (n,)
        Measured sizes (tokens or requests), strictly increasing.
    ms : array (n,)
        Their cost in milliseconds.
    rule : "captured", "linear" or "floor"
        How sizes between two points are read.
    capture_limit : int, optional
        Largest size with a CUDA graph, one of `sizes`; by default the last. Used by "captured":
        up to it the next size holds, beyond it the eager points only are interpolated and held at
        their first (no bridge over the cliff: vLLM's `adaptive_verification.py`).
    clamp_below : bool
        Whether sizes below the first point belong to the table. A captured curve always has them.
    """

    sizes: Sizes
    ms: Costs
    rule: Rule
    capture_limit: int | None = None
    clamp_below: bool = False

    @property
    def last_captured(self) -> int:
        """Largest size that is read as captured."""
        return int(self.sizes[-1]) if self.capture_limit is None else self.capture_limit

    def cost_ms(self, at: ArrayLike) -> Costs:
        """Cost in ms at each size, extended where `extended` says so. Same shape as `at`."""
        at = np.asarray(at)
        if self.rule == "captured":
            cost = self._captured(at)
        elif self.rule == "floor":
            cost = size_below(self.sizes, self.ms, at)
        else:
            cost = between(self.sizes, self.ms, at)
        past = at > self.sizes[-1]
        return np.where(past, beyond_end(self.sizes[-2:], self._tail(), at), cost)

    def _captured(self, at: Sizes) -> Costs:
        cost = next_size(self.sizes, self.ms, at)
        eager = self.sizes > self.last_captured
        if not eager.any():
            return cost
        beyond = between(self.sizes[eager], self.ms[eager], at)
        return np.where(at > self.last_captured, beyond, cost)

    def padding_ms(self, at: ArrayLike) -> Costs:
        """Return what a batch costs more than its own size would, padded to a captured one.

        A size between two captured ones would cost what the line between them says; where the
        larger one is the cheaper (a kernel's tile switch) nothing is padding. 0 where nothing is
        captured.
        """
        at = np.asarray(at)
        captured = self.sizes <= self.last_captured
        if self.rule != "captured" or not captured.any():
            return np.zeros(at.shape)
        exact = between(self.sizes[captured], self.ms[captured], at)
        inside = (at > 0) & (at <= self.sizes[captured][-1])
        return np.where(inside, np.maximum(self.cost_ms(at) - exact, 0.0), 0.0)

    def _tail(self) -> Costs:
        """Return the last two costs; a lone eager point lends no slope to the captured ones."""
        lone = self.rule == "captured" and (self.sizes > self.last_captured).sum() == 1
        return np.repeat(self.ms[-1], len(self.ms[-2:])) if lone else self.ms[-2:]

    def extended(self, at: ArrayLike) -> NDArray[np.bool_]:
        """Where a size lies outside the measured table."""
        at = np.asarray(at)
        below_counts = self.clamp_below or self.rule == "captured"
        below = (at < self.sizes[0]) & (not below_counts)
        return below | (at < 0) | (at > self.sizes[-1])

    def clamped(self, at: ArrayLike) -> NDArray[np.bool_]:
        """Where a size is eager but smaller than any eager size that was measured."""
        at = np.asarray(at)
        eager = self.sizes[self.sizes > self.last_captured]
        if self.rule != "captured" or not len(eager):
            return np.zeros(at.shape, dtype=bool)
        return (at > self.last_captured) & (at < eager[0])
