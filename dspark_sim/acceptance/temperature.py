"""Sequential Temperature Scaling: make the cumulative product of confidences tell the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.reliability import (
    NUM_BINS,
    check_blocks,
    expected_calibration_error,
    prefix_accepted,
    survival,
)
from dspark_sim.core import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

GRID = tuple(float(value) for value in np.logspace(-1.0, 1.0, 41))
"""Temperatures that are tried: 41 from 0.1 to 10, 1 among them (SGLang's grid)."""


@dataclass(frozen=True)
class SequentialTemperatureScaling:
    """One temperature per draft position (arXiv 2607.05147, section 3.2.1).

    The calibrated confidence of position k is ``sigmoid(logit(c_k) / T_k)``: within a position the
    order of confidences stays. A temperature above 1 corrects an over-confident drafter.

    Parameters
    ----------
    temperatures
        T_1..T_γ, positive.
    dataset, num_samples
        Where the temperatures come from: a name, and the number of blocks they were fitted on.
    ece_before, ece_after
        ECE of the cumulative product per position on those blocks, 0..1; empty if not known.
    """

    temperatures: tuple[float, ...]
    dataset: str = ""
    num_samples: int = 0
    ece_before: tuple[float, ...] = ()
    ece_after: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_positive(self.temperatures)

    @classmethod
    def fit(
        cls,
        confidence: NDArray[np.float64],
        accepted: NDArray[np.int64],
        dataset: str = "",
        grid: Sequence[float] = GRID,
        num_bins: int = NUM_BINS,
    ) -> SequentialTemperatureScaling:
        """Choose T_k from left to right, each the one of `grid` with the least ECE of the prefix.

        Earlier temperatures stay fixed; of equal temperatures the one nearest to 1 is taken.

        Parameters
        ----------
        confidence, accepted
            Training blocks, (n, γ) and (n,). Do not measure on them.
        """
        from scipy.special import expit, logit

        confidence, accepted = check_blocks(confidence, accepted)
        happened = prefix_accepted(accepted, confidence.shape[1])
        _check_positive(grid)
        tried = sorted(grid, key=lambda t: abs(np.log(t)))
        before = np.ones(len(accepted))
        temperatures, errors = [], []
        for column, outcome in zip(confidence.T, happened.T, strict=True):
            z = logit(column)
            products = (before * expit(z / t) for t in tried)
            ece = [expected_calibration_error(p, outcome, num_bins) for p in products]
            best = int(np.argmin(ece))
            temperatures.append(float(tried[best]))
            errors.append(ece[best])
            before = before * expit(z / tried[best])
        raw = zip(survival(confidence).T, happened.T, strict=True)
        return cls(
            tuple(temperatures),
            dataset,
            len(accepted),
            tuple(expected_calibration_error(p, outcome, num_bins) for p, outcome in raw),
            tuple(errors),
        )

    def apply(self, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return calibrated confidence (n, k) of blocks of k tokens, k up to γ; 0 and 1 stay."""
        from scipy.special import expit, logit

        raw = np.asarray(confidence, dtype=np.float64)
        if raw.ndim != 2 or raw.shape[1] > len(self.temperatures):
            raise UserError(
                f"confidence of shape {raw.shape} does not fit {len(self.temperatures)} "
                f"temperatures: (n, k) with k up to {len(self.temperatures)} is needed"
            )
        t = np.array(self.temperatures[: raw.shape[1]])
        with np.errstate(over="ignore"):
            scaled: NDArray[np.float64] = np.where(t == 1.0, raw, expit(logit(raw) / t))
        return scaled


def _check_positive(temperatures: Sequence[float]) -> None:
    if not temperatures or not all(0.0 < t < np.inf for t in temperatures):
        raise UserError(f"temperatures must be positive numbers, got {list(temperatures)}")
