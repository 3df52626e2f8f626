"""Maps from the drafter's confidence to another: offline and online STS, Platt, EMA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from dspark_sim.policies.token_bins import NUM_BINS, TokenBins, to_confidence, to_logit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TEMPERATURES = np.geomspace(0.125, 8.0, 49)
POOLED_WEIGHT = 64.0
"""Observations that a position's temperature starts with from all positions together."""
PLATT_LEAST, PLATT_EVERY, STS_EVERY, RIDGE = 50.0, 100, 16, 1.0


class ConfidenceMap(Protocol):
    """Turns reported confidences into those a policy is shown, and may learn from outcomes."""

    def learn(self, confidence: Floats, verified: Ints, accepted: Ints) -> None:
        """Take in the last step's drafts (n, γ) and what became of those that were verified."""
        ...

    def apply(self, confidence: Floats, before: Floats) -> Floats:
        """Return the confidences to show, (n, γ), given those shown before (n, γ; NaN if none)."""
        ...


class Temperatures:
    """Offline STS: sigmoid(logit(c_k) / T_k) with given T_k (arXiv 2607.05147, section 3.2.1)."""

    def __init__(self, temperatures: Floats) -> None:
        self.temperatures = temperatures

    def learn(self, confidence: Floats, verified: Ints, accepted: Ints) -> None:
        """Learn nothing."""

    def apply(self, confidence: Floats, before: Floats) -> Floats:
        """Return the tempered confidences."""
        return to_confidence(to_logit(confidence) / self.temperatures)


class OnlineTemperatures(Temperatures):
    """Online STS: the T_k of highest likelihood on what was verified, forgetting 0.1 % a step.

    Of 49 temperatures from 1/8 to 8; a position is drawn towards all positions together with the
    weight of 64 tokens. Fitted anew every 16 steps.
    """

    def __init__(self, gamma: int) -> None:
        super().__init__(np.ones(gamma))
        self._bins = TokenBins(gamma, keep=0.999)
        self._steps = 0

    def learn(self, confidence: Floats, verified: Ints, accepted: Ints) -> None:
        """Count the tokens; refit when due."""
        self._bins.add(confidence, verified, accepted)
        self._steps += 1
        if self._steps % STS_EVERY == 0:
            self.temperatures = self._fitted()

    def _fitted(self) -> Floats:
        bins = self._bins
        log_odds = bins.mean_logit[..., None] / TEMPERATURES  # (γ, bins, temperatures)
        good, bad = np.log(to_confidence(log_odds)), np.log(to_confidence(-log_odds))
        lost = (bins.tested - bins.accepted)[..., None]
        likelihood = (bins.accepted[..., None] * good + lost * bad).sum(axis=1)
        pooled = likelihood.sum(axis=0) * POOLED_WEIGHT / max(float(bins.tested.sum()), 1.0)
        chosen: Floats = TEMPERATURES[np.argmax(likelihood + pooled, axis=1)]
        return chosen


class Platt:
    """Per position sigmoid(A_k logit(c_k) + B_k), fitted every 100 steps to what was verified.

    Newton's method with a ridge of one token towards A = 1, B = 0; a position with fewer than 50
    tested tokens stays as reported (the schedule of vLLM pull request 52228). With `early` it is
    also fitted after 1, 2, 4, 8, … steps.
    """

    def __init__(self, gamma: int, *, early: bool = False) -> None:
        self.slope, self.offset = np.ones(gamma), np.zeros(gamma)
        self._bins = TokenBins(gamma)
        self._steps, self._early = 0, early

    def learn(self, confidence: Floats, verified: Ints, accepted: Ints) -> None:
        """Count the tokens; refit when due."""
        self._bins.add(confidence, verified, accepted)
        self._steps += 1
        power_of_two = self._steps & (self._steps - 1) == 0
        if self._steps % PLATT_EVERY == 0 or (self._early and power_of_two):
            for k in np.flatnonzero(self._bins.tested.sum(axis=1) >= PLATT_LEAST):
                self.slope[k], self.offset[k] = self._fitted(int(k))

    def apply(self, confidence: Floats, before: Floats) -> Floats:
        """Return the fitted confidences."""
        return to_confidence(self.slope * to_logit(confidence) + self.offset)

    def _fitted(self, k: int) -> Floats:
        bins, usual = self._bins, np.array([1.0, 0.0])
        features = np.stack([bins.mean_logit[k], np.ones(NUM_BINS)])
        weights = usual.copy()
        for _ in range(20):
            p = to_confidence(weights @ features)
            gradient = features @ (bins.accepted[k] - bins.tested[k] * p)
            gradient -= RIDGE * (weights - usual)
            curvature = (features * (bins.tested[k] * p * (1.0 - p))) @ features.T
            step = np.linalg.solve(curvature + RIDGE * np.eye(2), gradient)
            weights = weights + np.clip(step, -1.0, 1.0)  # whole steps may leap past the peak
        weights[0] = max(weights[0], 0.0)  # more confidence never means less
        return weights


class Smoothed:
    """An EMA over a request's own steps, per position: α · c_k + (1 − α) · the one before."""

    def __init__(self, weight: float) -> None:
        self._weight = weight

    def learn(self, confidence: Floats, verified: Ints, accepted: Ints) -> None:
        """Learn nothing."""

    def apply(self, confidence: Floats, before: Floats) -> Floats:
        """Return the smoothed confidences."""
        old = np.where(np.isnan(before), confidence, before)
        return np.asarray(self._weight * confidence + (1.0 - self._weight) * old)
