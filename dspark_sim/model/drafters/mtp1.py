"""MTP-1: one multi-token-prediction layer on the target's final hidden state, one draft token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.model.drafters.eagle3 import Eagle3

if TYPE_CHECKING:
    from torch import Tensor


class MTP1(Eagle3):
    """A single extra layer that predicts the token after the next one; γ = 1."""

    @property
    def feature_size(self) -> int:
        """Numbers per position that it takes of the target: the final hidden state's."""
        return self.target.hidden_size

    def chosen(self, features: Tensor) -> Tensor:
        """Return the final hidden state of the target's features (…, F)."""
        return features[..., -self.feature_size :]
