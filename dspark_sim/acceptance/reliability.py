"""How far confidence can be trusted: predicted prefix survival against what was accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_BINS = 20
"""Bins of the reliability diagram, each 0.05 wide (arXiv 2607.05147, section 3.2.1)."""


def survival(confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the predicted prefix survival a_k = Π_{i≤k} c_i of each block, shape (n, γ)."""
    product: NDArray[np.float64] = np.cumprod(confidence, axis=1, dtype=np.float64)
    return product


def prefix_accepted(accepted: NDArray[np.int64], draft_len: int) -> NDArray[np.bool_]:
    """Return whether the first k draft tokens were all accepted, shape (n, γ)."""
    whole: NDArray[np.bool_] = accepted[:, None] > np.arange(draft_len)
    return whole


def check_blocks(
    confidence: NDArray[np.float64], accepted: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return confidence (n, γ) and accepted length (n,) as arrays, or say what is wrong."""
    c, a = np.asarray(confidence, dtype=np.float64), np.asarray(accepted)
    if c.ndim != 2 or a.shape != (len(c),) or c.size == 0:
        raise UserError(
            f"confidence of shape {c.shape} and accepted lengths of shape {a.shape} do not match: "
            "(n, γ) and (n,) are needed, n and γ at least 1"
        )
    if not ((c >= 0.0) & (c <= 1.0)).all():
        bad = c[~((c >= 0.0) & (c <= 1.0))][0]
        raise UserError(f"confidence must lie in 0..1, found {bad}")
    if a.dtype.kind not in "iu" or a.min() < 0 or a.max() > c.shape[1]:
        raise UserError(
            f"accepted lengths must be whole numbers in 0..{c.shape[1]}, found {a.min()}..{a.max()}"
        )
    return c, a.astype(np.int64)


def expected_calibration_error(
    predicted: NDArray[np.float64], happened: NDArray[np.bool_], num_bins: int = NUM_BINS
) -> float:
    """Return the ECE, 0..1: mean distance of predicted from observed rate over equal-width bins.

    Bins are closed below, the last on both sides; each weighs as many blocks as it holds.
    """
    gap = np.bincount(_bins(predicted, num_bins), predicted - happened)
    return float(np.abs(gap).sum() / len(predicted))


def auc(score: NDArray[np.float64], happened: NDArray[np.bool_]) -> float:
    """Return P(an accepted prefix scores above a rejected one), ties half; NaN if one is absent."""
    _, group = np.unique(score, return_inverse=True)
    accepted = np.bincount(group, happened)
    rejected = np.bincount(group, ~happened)
    pairs = accepted.sum() * rejected.sum()
    below = np.cumsum(rejected) - 0.5 * rejected
    return float(accepted @ below / pairs) if pairs > 0 else float("nan")


def calibration_metrics(
    confidence: NDArray[np.float64], accepted: NDArray[np.int64], num_bins: int = NUM_BINS
) -> pd.DataFrame:
    """Return how the predicted prefix survival of each position fares, one row per position.

    Columns: position (1..γ), num_blocks, predicted and observed (mean survival, 0..1), bias
    (predicted − observed: positive is over-confident), ece, brier, auc (Fig. 6's measures).
    """
    confidence, accepted = check_blocks(confidence, accepted)
    predicted, happened = survival(confidence), prefix_accepted(accepted, confidence.shape[1])
    columns = list(zip(predicted.T, happened.T, strict=True))
    mean, rate = predicted.mean(axis=0), happened.mean(axis=0)
    return pd.DataFrame(
        {
            "position": np.arange(1, len(columns) + 1),
            "num_blocks": len(accepted),
            "predicted": mean,
            "observed": rate,
            "bias": mean - rate,
            "ece": [expected_calibration_error(p, o, num_bins) for p, o in columns],
            "brier": np.mean((predicted - happened) ** 2, axis=0),
            "auc": [auc(p, o) for p, o in columns],
        }
    )


def reliability_table(
    confidence: NDArray[np.float64],
    accepted: NDArray[np.int64],
    position: int,
    num_bins: int = NUM_BINS,
) -> pd.DataFrame:
    """Return one position's reliability diagram: bin, low, high, predicted, observed, count.

    Bins without blocks are left out.
    """
    confidence, accepted = check_blocks(confidence, accepted)
    if not 1 <= position <= confidence.shape[1]:
        raise UserError(f"position {position} is outside 1..{confidence.shape[1]}")
    predicted = survival(confidence)[:, position - 1]
    bins = _bins(predicted, num_bins)
    count = np.bincount(bins, minlength=num_bins)
    full = np.flatnonzero(count)
    happened = accepted >= position
    return pd.DataFrame(
        {
            "bin": full,
            "low": full / num_bins,
            "high": (full + 1) / num_bins,
            "predicted": np.bincount(bins, predicted, num_bins)[full] / count[full],
            "observed": np.bincount(bins, happened, num_bins)[full] / count[full],
            "count": count[full],
        }
    )


def _bins(predicted: NDArray[np.float64], num_bins: int) -> NDArray[np.int64]:
    return np.minimum((predicted * num_bins).astype(np.int64), num_bins - 1)
