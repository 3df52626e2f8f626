"""What drafting costs by number of requests and draft length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.throughput.lookup import Curve

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from dspark_sim.throughput.schema import DraftRule


@dataclass(frozen=True)
class DraftCost:
    """One cost curve over the number of requests for every draft length that was measured.

    A block drafter runs once whatever the length: one measured length holds for all, several are
    interpolated and held below the first. An autoregressive drafter runs once per token: its cost
    is linear in the length, proportional to it when only one length was measured.
    """

    lengths: NDArray[np.int64]
    curves: tuple[Curve, ...]
    autoregressive: bool

    @classmethod
    def from_table(cls, draft: pd.DataFrame, rule: DraftRule, autoregressive: bool) -> DraftCost:
        """Build the curves from a profile's draft table."""
        lengths = np.unique(draft["draft_len"].to_numpy())
        curves = []
        for length in lengths:
            rows = draft[draft["draft_len"] == length]
            curves.append(Curve(rows["num_requests"].to_numpy(), rows["ms"].to_numpy(), rule))
        return cls(lengths, tuple(curves), autoregressive)

    @property
    def request_range(self) -> tuple[int, int]:
        """Fewest and most requests that are answered without extension, at every length."""
        last = min(int(curve.sizes[-1]) for curve in self.curves)
        if self.curves[0].rule == "captured":
            return 1, last
        return max(int(curve.sizes[0]) for curve in self.curves), last

    def cost_ms(self, num_requests: ArrayLike, draft_len: ArrayLike) -> NDArray[np.float64]:
        """Cost in ms, broadcast; 0 where nothing is drafted; extended where `extended` says so."""
        requests, length = np.broadcast_arrays(num_requests, draft_len)
        per_length = np.stack([curve.cost_ms(requests) for curve in self.curves])
        if len(self.lengths) == 1:
            scale = length / self.lengths[0] if self.autoregressive else 1.0
            cost = per_length[0] * scale
        else:
            cost = self._along_length(per_length, length)
        return np.where((requests > 0) & (length > 0), cost, 0.0)

    def _along_length(
        self, per_length: NDArray[np.float64], length: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        right = np.searchsorted(self.lengths, length, side="right")
        left = np.clip(right - 1, 0, len(self.lengths) - 2)
        span = self.lengths[left + 1] - self.lengths[left]
        weight = (length - self.lengths[left]) / span
        if not self.autoregressive:
            weight = np.maximum(weight, 0.0)
        low = np.take_along_axis(per_length, left[None], axis=0)[0]
        high = np.take_along_axis(per_length, left[None] + 1, axis=0)[0]
        cost: NDArray[np.float64] = np.maximum(low + weight * (high - low), 0.0)
        return cost

    def extended_requests(self, num_requests: ArrayLike) -> NDArray[np.bool_]:
        """Where a number of requests lies outside the measured table."""
        first, last = self.request_range
        at = np.asarray(num_requests)
        return (at < first) | (at > last)

    def extended_length(self, draft_len: ArrayLike) -> NDArray[np.bool_]:
        """Where a block is longer than any that was measured, if several lengths were."""
        ruled = self.autoregressive or len(self.lengths) == 1
        return (np.asarray(draft_len) > self.lengths[-1]) & (not ruled)

    def extended(self, num_requests: ArrayLike, draft_len: ArrayLike) -> NDArray[np.bool_]:
        """Where a draft's cost lies outside the measured table."""
        requests, length = np.broadcast_arrays(num_requests, draft_len)
        outside = self.extended_requests(requests) | self.extended_length(length)
        return (requests > 0) & (length > 0) & outside
