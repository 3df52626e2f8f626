"""The Pareto frontier of throughput against interactivity, and what one policy gains on another.

Interactivity is `tok_s_user`, throughput is `tok_s_gpu`; both larger is better. A policy's curve
is the frontier of its own points, linear between neighbours and never extended (paper,
arXiv 2607.05147, Fig. 7).
"""

from __future__ import annotations

from math import ceil, floor, inf, log10, nan
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.policies import is_lossless
from dspark_sim.study.seeds import aggregate, of_policy, over_seeds, percent_gain, tidy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Curve = tuple[Floats, Floats]


def pareto_frontier(x: ArrayLike, y: ArrayLike) -> NDArray[np.bool_]:
    """Mark the points that no other point dominates, both coordinates larger is better.

    A point is dominated by another that is at least as large in both and larger in one. Equal
    points therefore do not dominate each other: all copies are marked or none. A point with a
    NaN is never marked and dominates nothing. O(n log n).

    >>> pareto_frontier([1.0, 2.0, 3.0, 2.0], [9.0, 5.0, 1.0, 4.0]).tolist()
    [True, True, True, False]
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise ValueError(f"x and y must be equally long lists, got {xs.shape} and {ys.shape}")
    marked = np.zeros(xs.size, dtype=np.bool_)
    known = np.flatnonzero(~(np.isnan(xs) | np.isnan(ys)))
    if known.size == 0:
        return marked
    order = known[np.lexsort((-ys[known], -xs[known]))]
    sx, sy = xs[order], ys[order]
    starts_column = np.r_[True, sx[1:] != sx[:-1]]
    column = np.maximum.accumulate(np.where(starts_column, np.arange(sx.size), 0))
    beats_larger_x = sy > np.r_[-inf, np.maximum.accumulate(sy)][column]
    beats_larger_x[column == 0] = True
    marked[order] = beats_larger_x & (sy == sy[column])
    return marked


def joint_frontier(means: pd.DataFrame) -> NDArray[np.bool_]:
    """Mark the rows of `aggregate(runs)` on the frontier over all lossless policies."""
    lossless = means["policy"].map(is_lossless).to_numpy(dtype=bool)
    return pareto_frontier(np.where(lossless, means["tok_s_user"], nan), means["tok_s_gpu"])


def frontier(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the points of each policy's own frontier, by rising interactivity.

    The columns are those of `aggregate`, with `lossless` (False for the oracle) and
    `on_frontier`: whether the point is also on the joint frontier of all lossless policies.
    """
    means = aggregate(runs)
    means["lossless"] = means["policy"].map(is_lossless).astype(bool)
    means["on_frontier"] = joint_frontier(means)
    own = [
        rows[pareto_frontier(rows["tok_s_user"], rows["tok_s_gpu"])].sort_values("tok_s_user")
        for _, rows in means.groupby("policy", sort=False)
    ]
    return pd.concat(own, ignore_index=True)


def throughput_at(runs: pd.DataFrame, policy: str, tok_s_user: ArrayLike) -> Floats:
    """Return the tok/s/GPU that `policy` reaches at these tok/s/user, NaN outside its curve.

    The curve is that of the means over seeds.
    """
    user, gpu = _curve(of_policy(aggregate(runs), policy))
    return _interpolate(tok_s_user, user, gpu)


def interactivity_at(runs: pd.DataFrame, policy: str, tok_s_gpu: ArrayLike) -> Floats:
    """Return the tok/s/user that `policy` gives at these tok/s/GPU, NaN outside its curve."""
    user, gpu = _curve(of_policy(aggregate(runs), policy))
    return _interpolate(tok_s_gpu, gpu[::-1], user[::-1])


def area_under_frontier(
    runs: pd.DataFrame, policy: str, low: float = 0.0, high: float = inf
) -> float:
    """Integrate the best throughput at an interactivity of at least x, for x in [low, high].

    Left of its curve a policy still offers the throughput of its leftmost point (it is faster
    than asked); right of it, nothing. Unit: tok/s/GPU · tok/s/user. Higher is better, and a
    curve that dominates another has at least its area.
    """
    user, gpu = _curve(of_policy(aggregate(runs), policy))
    if user.size == 0 or low >= min(high, user[-1]):
        return 0.0
    end = min(high, user[-1])
    knots = np.r_[low, user[(user > low) & (user < end)], end]
    return float(np.trapezoid(np.interp(knots, user, gpu), knots))


def compare(
    runs: pd.DataFrame,
    policy: str,
    baseline: str,
    at_tok_s_user: Sequence[float] | None = None,
    at_tok_s_gpu: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Say what `policy` gains on `baseline`, as the paper reports it (Fig. 7).

    Rows with `equal` = "tok_s_user" hold the throughput of both at the interactivity `at`;
    rows with `equal` = "tok_s_gpu" the interactivity of both at the throughput `at`. Where
    neither list is given, both are round numbers over the range the two curves share.

    Each seed gives a curve per policy and a gain; `gain_pct` is their mean and `gain_pct_ci95`
    the half width of its 95 % t interval (NaN for one seed), `n_seeds` the number of seeds in
    which both curves reach the point. Nothing is extrapolated: where no seed reaches it, NaN.

    Raises
    ------
    UserError
        A policy is not in the sweep, or the two share no seed.
    """
    frame = tidy(runs)
    curves = _curves_by_seed(frame, policy, baseline)
    if at_tok_s_user is None and at_tok_s_gpu is None:
        at_tok_s_user, at_tok_s_gpu = _common_points(curves, 0), _common_points(curves, 1)
    rows = [
        (name, float(at), *(float(_at(curve, axis, at)) for curve in pair))
        for axis, name, points in (
            (0, "tok_s_user", at_tok_s_user),
            (1, "tok_s_gpu", at_tok_s_gpu),
        )
        for at in points or ()
        for pair in curves
    ]
    values = pd.DataFrame(rows, columns=["equal", "at", "policy_value", "baseline_value"])
    values = values.astype({"at": float, "policy_value": float, "baseline_value": float})
    values["gain_pct"] = percent_gain(values["policy_value"], values["baseline_value"])
    metrics = ["policy_value", "baseline_value", "gain_pct"]
    gains = over_seeds(values, ["equal", "at"], metrics, counted="gain_pct")
    gains.insert(0, "policy", policy)
    gains.insert(1, "baseline", baseline)
    return gains


def _curve(rows: pd.DataFrame) -> Curve:
    """Return one policy's frontier as rising tok/s/user and falling tok/s/GPU, no point twice."""
    points = rows[["tok_s_user", "tok_s_gpu"]].to_numpy(dtype=float)
    points = np.unique(points[pareto_frontier(points[:, 0], points[:, 1])], axis=0)
    return points[:, 0], points[:, 1]


def _interpolate(at: ArrayLike, x: Floats, y: Floats) -> Floats:
    wanted = np.asarray(at, dtype=float)
    if x.size == 0:
        return np.full(wanted.shape, nan)
    return np.asarray(np.interp(wanted, x, y, left=nan, right=nan))


def _at(curve: Curve, axis: int, value: float) -> Floats:
    x, y = curve if axis == 0 else (curve[1][::-1], curve[0][::-1])
    return _interpolate(value, x, y)


def _curves_by_seed(frame: pd.DataFrame, policy: str, baseline: str) -> list[tuple[Curve, Curve]]:
    sides = [dict(iter(of_policy(frame, name).groupby("seed"))) for name in (policy, baseline)]
    shared = [seed for seed in sides[0] if seed in sides[1]]
    if not shared:
        raise UserError(
            f"policies '{policy}' and '{baseline}' share no seed in the sweep; "
            "a comparison needs at least one"
        )
    return [(_curve(sides[0][seed]), _curve(sides[1][seed])) for seed in shared]


def _common_points(curves: list[tuple[Curve, Curve]], axis: int) -> list[float]:
    """Return at least five round numbers within what every curve covers; none if nothing."""
    spans = [curve[axis] for pair in curves for curve in pair]
    if any(span.size == 0 for span in spans):
        return []
    low, high = max(span.min() for span in spans), min(span.max() for span in spans)
    if low >= high:
        return [float(low)] if low == high else []
    decade = 10.0 ** floor(log10(high - low))
    for share in (1.0, 0.5, 0.25, 0.2, 0.1):
        step = decade * share
        first, last = ceil(low / step), floor(high / step)
        if last - first >= 4:
            break
    points = (round(index * step, 12) for index in range(first, last + 1))
    return [min(max(point, float(low)), float(high)) for point in points]
