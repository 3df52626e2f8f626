"""Where a sweep needs one more concurrency: where the curves of its policies bend most."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.study.pareto import pareto_frontier
from dspark_sim.study.seeds import aggregate

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_DIGITS = 9  # of a bend and of a gap: less is rounding


def next_concurrency(runs: pd.DataFrame) -> int | None:
    """Return the concurrency that a sweep should add next, None where there is no room.

    A policy's curve is its points (means over seeds) in order of concurrency, in the logarithms of
    tok/s/user and tok/s/GPU. A point on the policy's own frontier bends the curve by the area of
    the triangle that it makes with its two neighbours. Of the two gaps beside the largest bend of
    any policy the longer one is halved, in ratio: the new concurrency is the whole number nearest
    the geometric mean of its ends. Where nothing bends, the longest gap of all is halved; of equal
    ones that at the smaller concurrency. All policies get it, so that they stay comparable.

    Parameters
    ----------
    runs
        A sweep over the same concurrencies for every policy, as from `sweep`.
    """
    means = aggregate(runs)
    means = means[means["concurrency"].notna()]
    best: tuple[float, float, int] | None = None
    found = None
    for _, rows in means.groupby("policy", sort=False):
        curve = rows[(rows["tok_s_user"] > 0) & (rows["tok_s_gpu"] > 0)].sort_values("concurrency")
        loads = curve["concurrency"].to_numpy(dtype=np.int64)
        gaps = _gaps(np.log(curve[["tok_s_user", "tok_s_gpu"]].to_numpy(dtype=float)))
        for low, high, (bend, length) in zip(loads, loads[1:], gaps, strict=False):
            rank = (float(bend), float(length), -int(low))
            if high - low >= 2 and (best is None or rank > best):
                best, found = rank, _between(int(low), int(high))
    return found


def _between(low: int, high: int) -> int:
    """Return the whole number strictly between that is nearest the geometric mean."""
    return min(max(round(math.sqrt(low * high)), low + 1), high - 1)


def _gaps(points: Floats) -> Floats:
    """Return, of each gap between points (n, 2), the larger bend at its ends and its length."""
    bend = np.zeros(len(points))
    there, back = points[1:-1] - points[:-2], points[2:] - points[1:-1]
    bend[1:-1] = np.abs(there[:, 0] * back[:, 1] - there[:, 1] * back[:, 0]) / 2
    bend[~pareto_frontier(*points.T)] = 0.0
    length = np.linalg.norm(np.diff(points, axis=0), axis=1)
    return np.column_stack([np.maximum(bend[:-1], bend[1:]), length]).round(_DIGITS)
