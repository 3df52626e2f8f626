"""The model of a closed loop with a fixed draft length: what each user gets, and its gradient.

With c requests in flight and k draft tokens each, a step verifies M = c (1 + k) tokens and takes

    T(c, k) = θ(M) + α(c) + draft(c, k),

and a user gets AL_k tokens per step, so tok/s/user = 1000 AL_k / T with T in ms. AL_k is
1 + Σ_j Π_{i≤j} r_i over the first k conditional acceptance rates r, shared by every k.
log θ is piecewise linear in log M and never falls; α and the draft are affine in c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_LN2 = np.log(2.0)
# Prior standard deviations. Rates, on the logit: the conditional rates of arXiv 2607.05147 Fig. 2
# and of published per-position tables differ by 0.04-0.25 from one position to the next (MTP
# heads: 0.8) and bend by 0.05-0.2. Request and draft cost, as a share of the step at the largest
# concurrency.
_RATE, _RATE_STEP, _RATE_BEND = 1.5, 0.5, 0.2
_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class ClosedLoop:
    """The model's shape; its parameters are a plain vector, in the order of the slices below.

    Parameters
    ----------
    knots
        log of batch tokens, equally spaced, (n,) with n of at least 2.
    max_draft_len
        Longest k, hence how many acceptance rates there are.
    max_requests
        Largest concurrency; `scale_ms` is about what a step takes. Both only set units.
    per_request
        Whether there is a term α. With a single k, c and M rise together and θ takes it in.
    draft_power
        The draft's cost grows with k to this power: 0 for a block drafter, 1 for an
        autoregressive one. None: no such term, it is part of θ and α.
    """

    knots: Floats
    max_draft_len: int
    max_requests: int
    scale_ms: float
    per_request: bool
    draft_power: int | None

    @property
    def theta(self) -> slice:
        """The log of θ at the first knot, then its increments."""
        return slice(0, len(self.knots))

    @property
    def logits(self) -> slice:
        """The logit of every conditional acceptance rate."""
        return slice(len(self.knots), len(self.knots) + self.max_draft_len)

    @property
    def costs(self) -> slice:
        """Shares of scale_ms: α of the most requests, the draft of none and what the most add."""
        return slice(self.logits.stop, self.size)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.logits.stop + self.per_request + (0 if self.draft_power is None else 2)

    def start(self) -> Floats:
        """Return parameters to begin with."""
        first = np.zeros(self.size)
        first[self.theta] = np.r_[np.log(self.scale_ms / 2), np.full(len(self.knots) - 1, 0.1)]
        first[self.logits] = 1.0
        first[self.costs] = 0.05
        return first

    def lower(self) -> Floats:
        """Return the lower bounds: θ never falls, no cost is negative."""
        bounds = np.zeros(self.size)
        bounds[0] = bounds[self.logits] = -np.inf
        return bounds

    def theta_rows(self, batch_tokens: Floats) -> Floats:
        """Return rows (n, size): times the parameters, log θ; it is flat beyond the ends."""
        at = np.clip(np.log(batch_tokens), self.knots[0], self.knots[-1])
        place = (at - self.knots[0]) / self._spacing
        # Knot i is reached by summing increments 1..i, so a row is a ramp that ends at the place.
        ramp = np.clip(place[:, None] - np.arange(len(self.knots) - 1), 0.0, 1.0)
        rows = np.zeros((len(at), self.size))
        rows[:, self.theta] = np.column_stack([np.ones(len(at)), ramp])
        return rows

    @cached_property
    def _spacing(self) -> float:
        return float(self.knots[1] - self.knots[0])

    def survival(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Return P(first j drafts accepted), (K,), and its gradient (K, size)."""
        from scipy.special import expit

        rates = expit(parameters[self.logits])
        survival: Floats = np.cumprod(rates, dtype=np.float64)
        gradient = np.zeros((self.max_draft_len, self.size))
        gradient[:, self.logits] = np.tril(np.outer(survival, 1.0 - rates))
        return survival, gradient

    def length(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Return the acceptance length of k = 0..K, (K + 1,), and its gradient."""
        survival, gradient = self.survival(parameters)
        whole = np.concatenate(([1.0], 1.0 + np.cumsum(survival)))
        return whole, np.concatenate((np.zeros((1, self.size)), np.cumsum(gradient, axis=0)))

    def cost_rows(self, requests: Floats, draft_len: Ints) -> Floats:
        """Return rows (n, size) whose product with the parameters is α + draft in ms."""
        rows = np.zeros((len(requests), self.size))
        share = self.scale_ms * requests / self.max_requests
        columns = [share] * self.per_request
        if self.draft_power is not None:
            times = np.where(draft_len > 0, draft_len.astype(float) ** self.draft_power, 0.0)
            times = times / max(self.max_draft_len, 1) ** self.draft_power
            columns += [self.scale_ms * times, share * times]
        for column, values in zip(range(self.size)[self.costs], columns, strict=True):
            rows[:, column] = values
        return rows

    def step(self, parameters: Floats, requests: Floats, draft_len: Ints) -> tuple[Floats, Floats]:
        """Return the step time in ms, (n,), and its gradient (n, size)."""
        rows = self.theta_rows(requests * (1 + draft_len))
        theta = np.exp(rows @ parameters)
        costs = self.cost_rows(requests, draft_len)
        return theta + costs @ parameters, theta[:, None] * rows + costs

    def log_rate(
        self, parameters: Floats, requests: Floats, draft_len: Ints
    ) -> tuple[Floats, Floats]:
        """Return log tok/s/user, (n,), and its gradient (n, size)."""
        step, slope = self.step(parameters, requests, draft_len)
        length, growth = self.length(parameters)
        value = np.log(1000.0 * length[draft_len] / step)
        return value, growth[draft_len] / length[draft_len, None] - slope / step[:, None]

    def prior(self, roughness: float) -> tuple[Floats, Floats]:
        """Return A and b: what is known beforehand is that A @ parameters - b is about (0, 1)."""
        identity = np.eye(self.size)
        bend = np.diff(self.theta_rows(np.exp(self.knots)), 2, axis=0)
        bend /= roughness * (self._spacing / _LN2) ** 1.5
        logits = identity[self.logits]
        rates = [logits[:1] / _RATE, np.diff(logits, axis=0) / _RATE_STEP]
        rates.append(np.diff(logits, 2, axis=0) / _RATE_BEND)
        rows = np.concatenate([bend, *rates, identity[self.costs] / _SHARE])
        target = np.zeros(len(rows))
        target[len(bend) : len(bend) + len(rates[0])] = 1.0 / _RATE
        return rows, target


def knots_for(batch_tokens: Floats) -> Floats:
    """Return knots at most one octave apart from the smallest to the largest batch, as logs."""
    low, high = np.log(batch_tokens.min()), np.log(batch_tokens.max())
    octaves = int(np.ceil((high - low) / _LN2 - 1e-9))
    return np.linspace(low, high, max(octaves, 1) + 1)
