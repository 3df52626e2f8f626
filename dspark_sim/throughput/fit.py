"""Step time and acceptance from benchmark results: regularised least squares with intervals.

Minimised are the squared relative errors of tok/s/user (and of acceptance lengths where they are
reported), in units of 3 %, plus the model's prior (`ClosedLoop.prior`). How rough θ may be is
chosen by leaving out one batch size at a time: of five roughnesses the one that predicts the
points left out best. The same errors tell how far a batch size that was not measured strays from
its neighbours (captured sizes, kernel tiles), which widens the intervals between two sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError, unknown_name
from dspark_sim.throughput.closed_loop import ClosedLoop, knots_for
from dspark_sim.throughput.evidence import NOISE, Evidence
from dspark_sim.throughput.step_fit import StepFit

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROUGHNESS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Bends of log θ per octave (standard deviation) among which the data choose."""
DRAFTERS = {"block": 0, "autoregressive": 1, "none": None}
"""Kinds of drafter, and the power of the draft length with which their cost grows."""
_DEFAULT_ROUGHNESS = 0.2
_FOLDS = 12
_PRIOR_POINTS, _PRIOR_NOISE = 4.0, 0.02  # noise before the data speak, worth four points
# Steps of captured sizes between two measured batch sizes cannot be seen at all. vLLM's cost table
# of DeepSeek-V4-Flash strays by 4 to 6 % (rms) from a line through its powers of two.
_LEAST_JUMP = 0.04


def fit_results(
    points: pd.DataFrame,
    *,
    lengths: Mapping[int, float] | None = None,
    drafter: str = "block",
    cover: pd.DataFrame | None = None,
) -> StepFit:
    """Recover step time and acceptance from closed loops of one engine with fixed draft lengths.

    Parameters
    ----------
    points : DataFrame
        As `read_results` returns it: num_speculative_tokens, concurrency, tok_s_user and, NaN or
        None where unknown, output_tok_s, acceptance_length, position_rates.
    lengths : mapping, optional
        Acceptance lengths (bonus included) by draft length, taken as exact.
    drafter : "block", "autoregressive" or "none"
        Whether drafting costs once per step or once per token. It is told apart from verification
        only where some points draft and some do not; otherwise it is part of the step.
    cover : DataFrame, optional
        Points that will be predicted: their batch sizes and draft lengths are covered, their
        measurements are not looked at.

    Raises
    ------
    UserError
        Fewer than two batch sizes, or an acceptance length that is impossible.
    """
    if drafter not in DRAFTERS:
        raise unknown_name("drafter", drafter, DRAFTERS)
    model = _model(points, cover, DRAFTERS[drafter])
    evidence = Evidence.of(points, lengths or {}, model.max_draft_len)
    sizes = np.unique(evidence.batch_tokens)
    if len(sizes) < 2:
        raise UserError(
            f"a fit needs two batch sizes c (1 + k) at least, and all {len(points)} results have "
            f"{sizes[0]:.0f} tokens in a step"
        )
    roughness = _choose_roughness(model, evidence)
    parameters, jacobian, residuals = solve(model, evidence, roughness)
    noise, degrees, effective = _noise(evidence, jacobian, residuals)
    return StepFit(
        model=model,
        points=points,
        parameters=parameters,
        covariance=_covariance(evidence, jacobian, noise),
        noise=noise,
        jump=_jump(model, evidence, roughness, noise, parameters),
        roughness=roughness,
        degrees=degrees,
        effective=effective,
        lengths_known=evidence.lengths_known(),
    )


def _model(points: pd.DataFrame, cover: pd.DataFrame | None, power: int | None) -> ClosedLoop:
    k, c = points["num_speculative_tokens"], points["concurrency"]
    shortest = points[k == k.min()]
    sizes, longest, most = [c * (1 + k)], int(k.max()), int(c.max())
    if cover is not None and len(cover):
        sizes.append(cover["concurrency"] * (1 + cover["num_speculative_tokens"]))
        longest = max(longest, int(cover["num_speculative_tokens"].max()))
        most = max(most, int(cover["concurrency"].max()))
    return ClosedLoop(
        knots=knots_for(np.concatenate([size.to_numpy(dtype=float) for size in sizes])),
        max_draft_len=longest,
        max_requests=most,
        scale_ms=float(np.median(1000.0 * (1 + 0.5 * k.min()) / shortest["tok_s_user"])),
        per_request=k.nunique() > 1,
        draft_power=power if k.min() == 0 and k.max() > 0 else None,
    )


def solve(
    model: ClosedLoop, evidence: Evidence, roughness: float, start: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return the best parameters, and there the Jacobian and the residuals, evidence first."""
    from scipy.optimize import least_squares

    rows, target = model.prior(roughness)

    def residuals(parameters: Floats) -> Floats:
        return np.concatenate(
            (evidence.residuals(model, parameters)[0], rows @ parameters - target)
        )

    def jacobian(parameters: Floats) -> Floats:
        return np.concatenate((evidence.residuals(model, parameters)[1], rows))

    lower = model.lower()
    first = model.start() if start is None else np.maximum(start, lower + 1e-6)
    found = least_squares(residuals, first, jacobian, bounds=(lower, np.inf), x_scale="jac")
    return found.x, jacobian(found.x), residuals(found.x)


def _folds(evidence: Evidence) -> list[NDArray[np.bool_]]:
    """Return which points to leave out together: one inner batch size, or every twelfth."""
    sizes, rank = np.unique(evidence.batch_tokens, return_inverse=True)
    inner = (rank > 0) & (rank < len(sizes) - 1)
    count = min(_FOLDS, len(sizes) - 2)
    return [inner & (rank % count == fold) for fold in range(count)]


def _choose_roughness(model: ClosedLoop, evidence: Evidence) -> float:
    """Return the roughness that predicts batch sizes left out best; needs two of them."""
    folds = _folds(evidence)
    if len(folds) < 2:
        return _DEFAULT_ROUGHNESS
    scores = []
    for roughness in ROUGHNESS:
        whole = solve(model, evidence, roughness)[0]
        errors = [_errors(model, evidence, roughness, fold, whole)[0] for fold in folds]
        scores.append(float(np.mean(np.concatenate(errors) ** 2)))
    return ROUGHNESS[int(np.argmin(scores))]


def _errors(
    model: ClosedLoop,
    evidence: Evidence,
    roughness: float,
    fold: NDArray[np.bool_],
    start: Floats,
) -> tuple[Floats, Floats, Evidence, Floats]:
    """Return relative errors at the points left out, their gradient, and the fit without them."""
    rest = evidence.without(fold)
    parameters, jacobian, _ = solve(model, rest, roughness, start)
    value, slope = model.log_rate(parameters, evidence.requests[fold], evidence.draft_len[fold])
    return value - evidence.log_rate[fold], slope, rest, jacobian


def _jump(
    model: ClosedLoop, evidence: Evidence, roughness: float, noise: float, start: Floats
) -> float:
    """Return 4 % and what errors at sizes left out have beyond noise and the fit's uncertainty."""
    excess: list[Floats] = []
    for fold in _folds(evidence):
        errors, slope, rest, jacobian = _errors(model, evidence, roughness, fold, start)
        covariance = _covariance(rest, jacobian, noise)
        expected = np.einsum("ij,jk,ik->i", slope, covariance, slope) + noise**2
        excess.append(errors**2 - expected)
    over = float(np.mean(np.concatenate(excess))) if excess else 0.0
    return float(np.sqrt(_LEAST_JUMP**2 + max(over, 0.0)))


def _noise(evidence: Evidence, jacobian: Floats, residuals: Floats) -> tuple[float, float, float]:
    """Return the relative noise of a point, its degrees of freedom and the parameters used up."""
    count = evidence.num_measured
    seen = jacobian[:count]
    effective = float(np.trace(np.linalg.solve(jacobian.T @ jacobian, seen.T @ seen)))
    degrees = _PRIOR_POINTS + max(count - effective, 0.0)
    squares = float(np.sum(residuals[:count] ** 2)) * NOISE**2
    return float(np.sqrt((_PRIOR_POINTS * _PRIOR_NOISE**2 + squares) / degrees)), degrees, effective


def _covariance(evidence: Evidence, jacobian: Floats, noise: float) -> Floats:
    """Return the covariance of parameters fitted as if the noise were `NOISE`, when it is not."""
    inverse = np.linalg.inv(jacobian.T @ jacobian)
    weight = np.ones(len(jacobian))
    weight[: evidence.num_measured] = (noise / NOISE) ** 2
    covariance: Floats = inverse @ (jacobian.T * weight @ jacobian) @ inverse
    return covariance
