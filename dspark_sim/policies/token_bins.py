"""What verified tokens teach about a drafter's confidence: counts by position and logit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

NUM_BINS, LARGEST_LOGIT = 16, 8.0
_LEAST = 1e-12


def to_logit(confidence: Floats) -> Floats:
    """Return log(c / (1 − c)), finite also at 0 and 1."""
    inside = np.clip(confidence, _LEAST, 1.0 - _LEAST)
    logit: Floats = np.log(inside) - np.log1p(-inside)
    return logit


def to_confidence(logit: Floats) -> Floats:
    """Return the logistic function."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logit, -50.0, 50.0))), dtype=np.float64)


class TokenBins:
    """Tested and accepted tokens per position, in 16 bins of the reported logit from −8 to 8.

    Token j is tested if it was verified and all before it were accepted; nothing is learnt of
    the others (censored feedback).

    Attributes
    ----------
    tested, accepted, logits : (γ, 16)
        Weights, and the sum of the logits, decayed by `keep` at every step.
    """

    def __init__(self, gamma: int, keep: float = 1.0) -> None:
        self.tested, self.accepted, self.logits = np.zeros((3, gamma, NUM_BINS))
        self._keep = keep

    def add(self, confidence: Floats, verified: Ints, accepted: Ints) -> None:
        """Count the last step's drafts: confidences (n, γ), verified and accepted (n,)."""
        for table in (self.tested, self.accepted, self.logits):
            table *= self._keep
        place = np.arange(confidence.shape[1])
        tested = (place <= accepted[:, None]) & (place < verified[:, None])
        rows, columns = np.nonzero(tested)
        logit = to_logit(confidence[rows, columns])
        width = 2.0 * LARGEST_LOGIT / NUM_BINS
        bins = np.clip(np.floor((logit + LARGEST_LOGIT) / width), 0, NUM_BINS - 1).astype(np.int64)
        np.add.at(self.tested, (columns, bins), 1.0)
        np.add.at(self.accepted, (columns, bins), (columns < accepted[rows]).astype(float))
        np.add.at(self.logits, (columns, bins), logit)

    @property
    def mean_logit(self) -> Floats:
        """Mean reported logit of each bin (γ, 16), 0 where it is empty."""
        mean: Floats = self.logits / np.maximum(self.tested, _LEAST)
        return mean
