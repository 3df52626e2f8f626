"""A mean per round and its standard error, where whole responses are the sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ratio_with_error(values: NDArray[np.float64], groups: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean of `values` and its standard error when whole groups are the sample.

    The ratio estimator: a group's deviation is its sum minus the mean times its count. The error
    of a single group, and both numbers of none, are NaN.
    """
    if len(values) == 0:
        return float("nan"), float("nan")
    _, index = np.unique(groups, return_inverse=True)
    sums, counts = np.bincount(index, values), np.bincount(index)
    mean = float(values.mean())
    if len(sums) < 2:
        return mean, float("nan")
    spread = np.std(sums - mean * counts, ddof=1) / np.sqrt(len(sums)) / counts.mean()
    return mean, float(spread)
