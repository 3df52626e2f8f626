"""Solve an acceptance law's intercepts, so that a simulation returns the published rates.

The law: position j of a block is accepted with probability
``sigmoid(intercept_j + request_sd * z_request + token_sd * z_token)``, both z standard normal,
z_token drawn once per output position. Given a request, rounds are independent, so every average
over rounds is an average over requests weighted by their number of rounds, which is one over
their acceptance length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NODES = 64
_LOGIT_LIMIT = 60.0
_HALVINGS, _MOST_TURNS, _CLOSE = 7, 200, 1e-13


class Heterogeneity:
    """Quadrature over what differs between requests and between tokens (logit standard deviations).

    Attributes
    ----------
    weights : (n,)
        Probability of each request node.
    """

    def __init__(self, request_sd: float, token_sd: float) -> None:
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        self.weights: Floats = weights / weights.sum()
        self._shift: Floats = request_sd * nodes[:, None] + token_sd * nodes[None, :]

    def rate(self, intercept: float) -> Floats:
        """Return P(accept | request node), averaged over token difficulty, shape (n,)."""
        if np.isinf(intercept):
            return np.full(len(self.weights), float(intercept > 0))
        with np.errstate(over="ignore"):
            rates: Floats = 1.0 / (1.0 + np.exp(-intercept - self._shift)) @ self.weights
        return rates

    def survival(self, intercepts: Sequence[float] | Floats) -> Floats:
        """Return P(first j positions accepted | request node), shape (n, len(intercepts))."""
        rates = np.column_stack([self.rate(mu) for mu in intercepts])
        return np.cumprod(rates, axis=1, dtype=np.float64)

    def round_weights(self, intercepts: Sequence[float] | Floats) -> Floats:
        """Return the share of all rounds that each request node accounts for, shape (n,)."""
        length: Floats = 1.0 + self.survival(intercepts).sum(axis=1)
        weights: Floats = self.weights / length
        share: Floats = weights / weights.sum()
        return share


def pooled_rates(het: Heterogeneity, intercepts: Floats) -> Floats:
    """Return the conditional acceptance per position, pooled over rounds of full blocks, (k,)."""
    survival = het.round_weights(intercepts) @ het.survival(intercepts)
    return survival / np.concatenate(([1.0], survival[:-1]))


def acceptance_length(het: Heterogeneity, intercepts: Floats) -> float:
    """Return tokens per round, bonus included, pooled over rounds of full blocks."""
    return float(1.0 + het.round_weights(intercepts) @ het.survival(intercepts).sum(axis=1))


def intercepts_for_rates(het: Heterogeneity, rates: Sequence[float] | Floats) -> Floats:
    """Return the intercepts (k,) whose pooled conditional rates are `rates` (k,).

    The weights of requests depend on the answer, so the two are solved in turn until they agree.
    """
    targets = np.asarray(rates, dtype=np.float64)
    with np.errstate(divide="ignore"):
        solution = np.log(targets) - np.log1p(-targets)
    for _ in range(200):
        weights = het.round_weights(solution)
        previous, survival = solution.copy(), np.ones_like(weights)
        for j, target in enumerate(targets):
            reach = weights * survival
            if 0.0 < target < 1.0:
                solution[j] = _root(_rate_gap(het, reach, target))
            survival = survival * het.rate(solution[j])
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.abs(solution - previous), nan=0.0)
        if change.max() < 1e-10:
            break
    return solution


def _rate_gap(het: Heterogeneity, reach: Floats, target: float) -> Callable[[float], float]:
    def gap(intercept: float) -> float:
        return float(reach @ het.rate(intercept) / reach.sum()) - target

    return gap


def intercepts_for_lengths(het: Heterogeneity, lengths: Sequence[float]) -> dict[int, Floats]:
    """Return intercepts per draft length k for published acceptance lengths of k = 1, 2, ….

    Up to the peak of the curve all lengths share one prefix, taken from the nearest curve whose
    increments never rise (they are survivals; a published curve carries noise). Where the
    published length departs from that prefix, and beyond the peak, where a longer block disturbs
    its own early positions (InferenceX: DSpark's length falls after k = 6), the rates, the last
    one repeated, are scaled to the published length.
    """
    from scipy.optimize import isotonic_regression

    published = np.asarray(lengths, dtype=np.float64)
    peak = int(np.argmax(published)) + 1
    steps = np.diff(published[:peak], prepend=1.0)
    possible = 1.0 + np.arange(1, len(published) + 1)
    if not ((published >= 1.0) & (published <= possible)).all():
        raise UserError(
            f"acceptance lengths {list(lengths)} are impossible: the bonus token is included, so "
            "the length for k drafts lies in 1..k+1"
        )
    smooth = 1.0 + np.cumsum(isotonic_regression(steps, increasing=False).x)
    prefix = _prefix_for_lengths(het, smooth)
    rates = pooled_rates(het, prefix)
    table = {}
    for k in range(1, len(published) + 1):
        if k <= peak and abs(acceptance_length(het, prefix[:k]) - published[k - 1]) < 1e-6:
            table[k] = prefix[:k]
        else:
            longer = np.concatenate((rates[:k], np.full(max(k - peak, 0), rates[-1])))
            table[k] = intercepts_for_rates(het, _scaled_to_length(longer, published[k - 1]))
    return table


def _prefix_for_lengths(het: Heterogeneity, lengths: Floats) -> Floats:
    """Return intercepts (k,) whose first j positions give `lengths[j - 1]` tokens per round."""
    prefix: list[float] = []
    before, reach = np.ones(_NODES), np.ones(_NODES)
    for length in lengths:
        prefix.append(_root(_length_gap(het, before, reach, length)))
        reach = reach * het.rate(prefix[-1])
        before = before + reach
    return np.array(prefix)


def _length_gap(
    het: Heterogeneity, before: Floats, reach: Floats, length: float
) -> Callable[[float], float]:
    def gap(intercept: float) -> float:
        return float(1.0 / (het.weights @ (1.0 / (before + reach * het.rate(intercept)))) - length)

    return gap


def _scaled_to_length(rates: Floats, length: float) -> Floats:
    from scipy.optimize import brentq

    def gap(scale: float) -> float:
        return float(1.0 + np.cumprod(np.minimum(rates * scale, 1.0)).sum() - length)

    return np.minimum(rates * float(brentq(gap, 0.0, 1.0 / rates.min())), 1.0)


def _root(function: Callable[[float], float]) -> float:
    """Return where a rising function crosses zero: halving, then false positions (Illinois).

    `scipy.optimize` would do; loading it takes a sixth of the start-up of a small run.
    """
    low, high = -_LOGIT_LIMIT, _LOGIT_LIMIT
    below, above = function(low), function(high)
    if below >= 0 or above <= 0:
        return low if below >= 0 else high
    middle = last = 0.0
    for turn in range(_MOST_TURNS):
        part = 0.5 if turn < _HALVINGS else below / (below - above)
        previous, middle = middle, low + part * (high - low)
        value = function(middle)
        if value == 0.0 or (turn > 0 and abs(middle - previous) < _CLOSE):
            break
        if value < 0.0:
            low, below, above = middle, value, above / 2 if last < 0.0 else above
        else:
            high, above, below = middle, value, below / 2 if last > 0.0 else below
        last = value if turn >= _HALVINGS else 0.0
    return middle
