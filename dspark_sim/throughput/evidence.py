"""What benchmark results say to a fit: residuals of rates, acceptance lengths and survivals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from dspark_sim.throughput.closed_loop import ClosedLoop

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

NOISE = 0.03  # relative; runs on vLLM and SGLang differ by 2 to 6 % from each other
_GIVEN_NOISE = 0.003  # of an acceptance length that is given as exact
_SURVIVAL_NOISE = 0.02  # of a reported survival per position, absolute


@dataclass(frozen=True, eq=False)
class Evidence:
    """Measured closed loops, and what is known of acceptance besides.

    Attributes
    ----------
    requests, draft_len, log_rate : (n,)
        c, k and log tok/s/user.
    log_length : (n,)
        log of the acceptance length, NaN where it is not reported or nothing is drafted.
    given : dict
        Acceptance lengths by draft length, as good as exact.
    survival : (K,)
        P(first j drafts accepted), NaN where it is not reported.
    """

    requests: Floats
    draft_len: Ints
    log_rate: Floats
    log_length: Floats
    given: dict[int, float]
    survival: Floats

    @classmethod
    def of(cls, points: pd.DataFrame, given: Mapping[int, float], longest: int) -> Evidence:
        """Take the columns of `read_results`; `longest` is the longest draft of the model."""
        draft_len = points["num_speculative_tokens"].to_numpy(dtype=np.int64)
        length = points["acceptance_length"].to_numpy(dtype=float)
        for k, value in given.items():
            if not (1 <= k <= longest and 1.0 <= value <= k + 1):
                raise UserError(
                    f"acceptance length {value:g} for {k} draft tokens is impossible here: draft "
                    f"lengths are 1..{longest} and lengths, bonus included, lie in 1..k+1"
                )
        return cls(
            requests=points["concurrency"].to_numpy(dtype=float),
            draft_len=draft_len,
            log_rate=np.log(points["tok_s_user"].to_numpy(dtype=float)),
            log_length=np.log(np.where(draft_len > 0, length, np.nan)),
            given=dict(given),
            survival=_mean_survival(points["position_rates"].tolist(), longest),
        )

    @property
    def batch_tokens(self) -> Floats:
        """M = c (1 + k), (n,)."""
        return self.requests * (1 + self.draft_len)

    def without(self, left_out: NDArray[np.bool_]) -> Evidence:
        """Return the evidence without some of the closed loops."""
        kept = ~left_out
        return replace(
            self,
            requests=self.requests[kept],
            draft_len=self.draft_len[kept],
            log_rate=self.log_rate[kept],
            log_length=self.log_length[kept],
        )

    def lengths_known(self) -> bool:
        """Whether the acceptance length of every draft length that occurs is reported or given."""
        drafting = self.draft_len[self.draft_len > 0]
        told = set(self.draft_len[np.isfinite(self.log_length)]) | self.given.keys()
        return set(drafting) <= told | set(range(1, 1 + int(np.isfinite(self.survival).sum())))

    @property
    def num_measured(self) -> int:
        """How many residuals come first and have the noise of a run: rates, reported lengths."""
        return len(self.log_rate) + int(np.isfinite(self.log_length).sum())

    def residuals(self, model: ClosedLoop, parameters: Floats) -> tuple[Floats, Floats]:
        """Return residuals in standard deviations, (m,), and their gradient (m, size)."""
        rate, rate_slope = model.log_rate(parameters, self.requests, self.draft_len)
        length, growth = model.length(parameters)
        survival, decay = model.survival(parameters)
        told = np.isfinite(self.log_length)
        lengths, slopes = length[self.draft_len[told]], growth[self.draft_len[told]]
        known, seen = list(self.given), np.isfinite(self.survival)
        exact = np.array([self.given[k] for k in known])
        blocks = [
            ((rate - self.log_rate) / NOISE, rate_slope / NOISE),
            ((np.log(lengths) - self.log_length[told]) / NOISE, slopes / lengths[:, None] / NOISE),
            (
                np.log(length[known] / exact) / _GIVEN_NOISE,
                growth[known] / length[known, None] / _GIVEN_NOISE,
            ),
            (
                (survival - self.survival)[seen] / _SURVIVAL_NOISE,
                decay[seen] / _SURVIVAL_NOISE,
            ),
        ]
        return np.concatenate([b[0] for b in blocks]), np.concatenate([b[1] for b in blocks])


def _mean_survival(rates: Sequence[object], longest: int) -> Floats:
    """Return the mean over results of each position's survival, NaN where none reports it."""
    rows = np.full((len(rates), longest), np.nan)
    for row, reported in zip(rows, rates, strict=True):
        if isinstance(reported, tuple):
            row[: min(len(reported), longest)] = reported[:longest]
    count = np.isfinite(rows).sum(axis=0)
    return np.where(count > 0, np.nansum(rows, axis=0) / np.maximum(count, 1), np.nan)
