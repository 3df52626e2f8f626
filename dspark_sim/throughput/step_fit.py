"""A fitted step time and acceptance: predictions, θ(M), α(R), draft and lengths with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dspark_sim.throughput.closed_loop import ClosedLoop

    Floats = NDArray[np.float64]

LEVEL = 0.95
# Beyond the measured sizes θ may do anything from staying to doubling with each octave: the
# standard deviation of log θ is ln 2 / √12 per octave.
_BEYOND = 0.2
_NEAR = 0.125  # octaves from a measured batch size at which an unmeasured one is on its own


@dataclass(frozen=True, eq=False)
class StepFit:
    """Step time and acceptance recovered from closed loops.

    Intervals hold with a probability of 95 %: Student's t with `degrees`, from the covariance of
    the parameters; for a batch size that was not measured, `jump` is added, and for one beyond
    those that were, far more.

    Attributes
    ----------
    model : ClosedLoop
    points : DataFrame
        What was fitted.
    parameters, covariance : (size,), (size, size)
    noise : float
        Standard deviation of one point about the fit, relative.
    jump : float
        By how much a batch size that was not measured strays from its neighbours' line, relative.
    roughness : float
        Chosen standard deviation of the bend of log θ per octave.
    degrees : float
        Degrees of freedom of the intervals.
    effective : float
        Number of parameters that the measurements determine.
    lengths_known : bool
        Whether acceptance lengths were reported or given; if not, step time and acceptance are not
        told apart by the data and only predictions can be trusted.
    """

    model: ClosedLoop
    points: pd.DataFrame
    parameters: Floats
    covariance: Floats
    noise: float
    jump: float
    roughness: float
    degrees: float
    effective: float
    lengths_known: bool

    def predict(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return what closed loops would measure.

        Parameters
        ----------
        points : DataFrame
            num_speculative_tokens and concurrency.

        Returns
        -------
        DataFrame
            batch_tokens, step_ms, fitted_tok_s_user with low_ and high_ (a further measurement
            lies between them) and fitted_output_tok_s: concurrency x tok/s/user x the share that
            the fitted points of that concurrency kept of it (time to first token, filling and
            draining take the rest); NaN without output_tok_s in the fitted points.
        """
        requests = points["concurrency"].to_numpy(dtype=float)
        draft_len = points["num_speculative_tokens"].to_numpy(dtype=np.int64)
        value, slope = self.model.log_rate(self.parameters, requests, draft_len)
        sizes = requests * (1 + draft_len)
        wide = self._spread(slope, self._jump(sizes) ** 2 + self.noise**2)
        rate = np.exp(value)
        return pd.DataFrame(
            {
                "batch_tokens": sizes.astype(np.int64),
                "step_ms": self.model.step(self.parameters, requests, draft_len)[0],
                "fitted_tok_s_user": rate,
                "low_tok_s_user": rate * np.exp(-wide),
                "high_tok_s_user": rate * np.exp(wide),
                "fitted_output_tok_s": requests * rate * self._kept(requests),
            },
            index=points.index,
        )

    def theta(self, batch_tokens: ArrayLike, level: float = LEVEL) -> pd.DataFrame:
        """Return batch_tokens, ms, low_ms, high_ms of θ(M); the interval holds with `level`."""
        sizes = np.asarray(batch_tokens, dtype=float)
        rows = self.model.theta_rows(sizes)
        wide = self._spread(rows, self._jump(sizes) ** 2, level)
        ms = np.exp(rows @ self.parameters)
        columns = {"ms": ms, "low_ms": ms * np.exp(-wide), "high_ms": ms * np.exp(wide)}
        return pd.DataFrame({"batch_tokens": np.asarray(batch_tokens), **columns})

    def requests(self, num_requests: ArrayLike) -> pd.DataFrame:
        """Return num_requests, ms, low_ms, high_ms of α(R), never below 0."""
        count = np.asarray(num_requests, dtype=float)
        return self._costs(count, self.model.cost_rows(count, np.zeros(len(count), dtype=np.int64)))

    def draft(self, num_requests: ArrayLike, draft_len: int, level: float = LEVEL) -> pd.DataFrame:
        """Return num_requests, ms, low_ms, high_ms of drafting `draft_len` tokens each."""
        count = np.asarray(num_requests, dtype=float)
        lengths = np.full(len(count), draft_len)
        rows = self.model.cost_rows(count, lengths) - self.model.cost_rows(count, 0 * lengths)
        return self._costs(count, rows, level)

    def lengths(self) -> pd.DataFrame:
        """Return by draft length k: rate (conditional, of position k), acceptance length, bounds.

        Columns num_speculative_tokens, rate, low_rate, high_rate, acceptance_length, low_length,
        high_length; the bonus token is included.
        """
        from scipy.special import expit

        logits = self.parameters[self.model.logits]
        wide = self._spread(np.eye(self.model.size)[self.model.logits])
        value, slope = self.model.length(self.parameters)
        spread = self._spread(slope[1:] / (value[1:, None] - 1.0))
        k = np.arange(1, self.model.max_draft_len + 1)
        return pd.DataFrame(
            {
                "num_speculative_tokens": k,
                "rate": expit(logits),
                "low_rate": expit(logits - wide),
                "high_rate": expit(logits + wide),
                "acceptance_length": value[1:],
                "low_length": 1.0 + (value[1:] - 1.0) * np.exp(-spread),
                "high_length": np.minimum(1.0 + (value[1:] - 1.0) * np.exp(spread), k + 1.0),
            }
        )

    def knots(self) -> NDArray[np.int64]:
        """Return the batch sizes at which θ may bend."""
        return np.unique(np.round(np.exp(self.model.knots)).astype(np.int64))

    def measured_sizes(self) -> NDArray[np.int64]:
        """Return the batch sizes c (1 + k) of the fitted points."""
        k = self.points["num_speculative_tokens"].to_numpy(dtype=np.int64)
        return np.unique(self.points["concurrency"].to_numpy(dtype=np.int64) * (1 + k))

    def _spread(self, rows: Floats, more: ArrayLike = 0.0, level: float = LEVEL) -> Floats:
        """Return the half width of the intervals of rows @ parameters, (n,)."""
        variance = np.einsum("ij,jk,ik->i", rows, self.covariance, rows) + more
        from scipy.special import stdtrit

        half: Floats = stdtrit(self.degrees, 0.5 + level / 2) * np.sqrt(variance)
        return half

    def _jump(self, sizes: Floats) -> Floats:
        """Return by how much a batch size may stray from the fit's line, relative, (n,)."""
        known, at = np.log2(self.measured_sizes()), np.log2(sizes)
        octaves = np.abs(at[:, None] - known).min(axis=1)
        beyond = np.maximum(np.maximum(known[0] - at, at - known[-1]), 0.0)
        jump: Floats = np.hypot(self.jump * np.minimum(octaves / _NEAR, 1.0), _BEYOND * beyond)
        return jump

    def _costs(self, count: Floats, rows: Floats, level: float = LEVEL) -> pd.DataFrame:
        ms = rows @ self.parameters
        wide = self._spread(rows, 0.0, level)
        return pd.DataFrame(
            {
                "num_requests": count.astype(np.int64),
                "ms": ms,
                "low_ms": np.maximum(ms - wide, 0.0),
                "high_ms": ms + wide,
            }
        )

    def _kept(self, requests: Floats) -> Floats:
        """Return output tok/s over concurrency x tok/s/user, as the fitted points had it."""
        frame = self.points.dropna(subset=["output_tok_s"])
        if frame.empty:
            return np.full(len(requests), np.nan)
        share = frame["output_tok_s"] / frame["concurrency"] / frame["tok_s_user"]
        mean = share.groupby(frame["concurrency"]).mean()
        at = np.log(mean.index.to_numpy(dtype=float))
        kept: Floats = np.interp(np.log(requests), at, mean.to_numpy())
        return kept
