"""Parametric acceptance laws: published rates, heterogeneity, and the quality of confidence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.solve import (
    Heterogeneity,
    intercepts_for_lengths,
    intercepts_for_rates,
)
from dspark_sim.acceptance.source import AcceptanceSource, Member
from dspark_sim.core import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AUC_SAMPLES = 40_000
_MOST_NOISE = 200.0


@dataclass(frozen=True)
class ParametricAcceptance(AcceptanceSource):
    """A law of acceptance per position, with differing requests and tokens.

    Position j of a block of k is accepted with probability
    ``sigmoid(intercept[k, j] + request_sd * z_request + token_sd * z_token)``; the intercepts are
    solved so that a simulation of full blocks returns the published pooled numbers.

    Parameters
    ----------
    rates
        Conditional acceptance per position (arXiv 2607.05147, Fig. 2), of blocks of that length;
        shorter blocks share the prefix. Give either these or `lengths`.
    lengths
        Acceptance length, bonus included, for draft lengths 1, 2, … (InferenceX).
    request_sd, token_sd
        Standard deviations on the logit between requests and between tokens of a request. Values
        near 1 give the prefix AUCs of Fig. 6; they are the ceiling of the confidence's AUC.
    confidence_scale, confidence_bias, confidence_noise
        What the drafter reports where the rate is p:
        ``sigmoid(scale * logit(p) + bias + noise * z)``. A scale above 1 is over-confident; noise
        lowers the AUC.
    """

    name: str
    rates: tuple[float, ...] = ()
    lengths: tuple[float, ...] = ()
    request_sd: float = 1.0
    token_sd: float = 1.0
    confidence_scale: float = 1.0
    confidence_bias: float = 0.0
    confidence_noise: float = 0.0
    origin: str = "given"

    def __post_init__(self) -> None:
        if bool(self.rates) == bool(self.lengths):
            raise UserError(f"acceptance '{self.name}': give either rates or lengths")
        if not all(0.0 <= rate <= 1.0 for rate in self.rates):
            raise UserError(f"acceptance '{self.name}': rates must lie in 0..1, got {self.rates}")
        for key in ("request_sd", "token_sd", "confidence_noise"):
            if not 0.0 <= getattr(self, key) < np.inf:
                raise UserError(
                    f"acceptance '{self.name}': {key} must be 0 or more, got {getattr(self, key)}"
                )
        if not 0.0 < self.confidence_scale < np.inf or not np.isfinite(self.confidence_bias):
            raise UserError(
                f"acceptance '{self.name}': confidence_scale must be positive and "
                f"confidence_bias finite, got {self.confidence_scale} and {self.confidence_bias}"
            )

    @property
    def max_draft_len(self) -> int:
        """Longest block the published numbers cover, in draft tokens."""
        return len(self.rates) or len(self.lengths)

    def intercepts(self) -> dict[int, NDArray[np.float64]]:
        """Return the logit intercepts (k,) by draft length k."""
        return _intercepts(self.rates, self.lengths, self.request_sd, self.token_sd)

    def members(self) -> list[Member]:
        """Return the law as the only member."""
        shape = self.max_draft_len
        confidence = (
            np.full(shape, self.confidence_scale),
            np.full(shape, self.confidence_bias),
            self.confidence_noise,
        )
        return [Member(confidence, self.intercepts(), self.request_sd, self.token_sd)]

    def prefix_auc(self, position: int) -> float:
        """Return how well confidence ranks prefixes: the AUC of the survival of `position` tokens.

        Over rounds of full blocks, by a fixed sample of 40,000 rounds (standard error near 0.003).
        """
        if not 1 <= position <= self.max_draft_len:
            raise UserError(f"position {position} is outside 1..{self.max_draft_len}")
        from scipy.special import expit

        mu = self.intercepts()[self.max_draft_len][:position]
        draw = np.random.default_rng(20260706)
        level = draw.standard_normal(_AUC_SAMPLES)
        token = draw.standard_normal((_AUC_SAMPLES, position))
        noise = draw.standard_normal((_AUC_SAMPLES, position))
        luck = draw.random((_AUC_SAMPLES, position))
        true = mu + self.request_sd * level[:, None] + self.token_sd * token
        reported = self.confidence_scale * true + self.confidence_bias
        score = -np.logaddexp(0.0, -(reported + self.confidence_noise * noise)).sum(axis=1)
        accepted: NDArray[np.bool_] = np.all(luck < expit(true), axis=1)
        return _weighted_auc(score, accepted, self._rounds(level))

    def with_auc(self, auc: float, position: int = 1) -> ParametricAcceptance:
        """Return the law with just enough confidence noise to bring its prefix AUC to `auc`."""
        from scipy.optimize import brentq

        ceiling = replace(self, confidence_noise=0.0).prefix_auc(position)
        if not 0.5 < auc <= ceiling:
            raise UserError(
                f"acceptance '{self.name}': an AUC of {auc} at position {position} is outside "
                f"0.5..{ceiling:.3f}, the ceiling set by request_sd={self.request_sd} and "
                f"token_sd={self.token_sd}"
            )

        def gap(noise: float) -> float:
            return replace(self, confidence_noise=noise).prefix_auc(position) - auc

        if gap(0.0) <= 0.0:
            return replace(self, confidence_noise=0.0)
        if gap(_MOST_NOISE) >= 0.0:
            raise UserError(
                f"acceptance '{self.name}': an AUC of {auc} at position {position} cannot be told "
                "from 0.5 over the rounds that are sampled"
            )
        return replace(self, confidence_noise=float(brentq(gap, 0.0, _MOST_NOISE, xtol=1e-4)))

    def _rounds(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weight of a request in rounds: one over its acceptance length, (n,)."""
        from scipy.special import expit

        nodes = np.linspace(-5.0, 5.0, 201)
        mu = self.intercepts()[self.max_draft_len]
        tokens, weights = np.polynomial.hermite_e.hermegauss(32)
        shift = self.request_sd * nodes[:, None] + self.token_sd * tokens
        rates = np.stack([expit(m + shift) @ (weights / weights.sum()) for m in mu], axis=1)
        length = 1.0 + np.cumprod(rates, axis=1).sum(axis=1)
        return 1.0 / np.interp(level, nodes, length)


def geometric(acceptance_length: float, draft_len: int) -> ParametricAcceptance:
    """Return the law where every draft token is accepted alike: E = (1 − a^(k+1)) / (1 − a).

    Parameters
    ----------
    acceptance_length
        Mean tokens per round, bonus included, in 1..draft_len + 1.
    """
    from scipy.optimize import brentq

    _check_length(acceptance_length, draft_len)

    def gap(rate: float) -> float:
        return float(sum(rate**j for j in range(draft_len + 1)) - acceptance_length)

    rate = 1.0 if gap(1.0) <= 0 else float(brentq(gap, 0.0, 1.0, xtol=1e-15))
    return _even(f"geometric:{acceptance_length:g}", (rate,) * draft_len)


def minimum_variance(acceptance_length: float, draft_len: int) -> ParametricAcceptance:
    """Return the law whose accepted count is one of two neighbours (vLLM's synthetic schedule)."""
    _check_length(acceptance_length, draft_len)
    whole, part = divmod(acceptance_length - 1.0, 1.0)
    rates = [1.0] * int(whole) + [part] + [0.0] * draft_len
    return _even(f"minvar:{acceptance_length:g}", tuple(rates[:draft_len]))


def _even(name: str, rates: tuple[float, ...]) -> ParametricAcceptance:
    return ParametricAcceptance(
        name, rates, request_sd=0.0, token_sd=0.0, origin="synthetic, all tokens alike"
    )


def _check_length(acceptance_length: float, draft_len: int) -> None:
    if not 1.0 <= acceptance_length <= draft_len + 1:
        raise UserError(
            f"acceptance length {acceptance_length} is impossible with {draft_len} draft tokens: "
            f"the bonus token is included, so it lies in 1..{draft_len + 1}"
        )


@lru_cache(maxsize=256)
def _intercepts(
    rates: tuple[float, ...], lengths: tuple[float, ...], request_sd: float, token_sd: float
) -> dict[int, NDArray[np.float64]]:
    het = Heterogeneity(request_sd, token_sd)
    if lengths:
        return intercepts_for_lengths(het, lengths)
    if request_sd == token_sd == 0.0:
        from scipy.special import logit

        with np.errstate(divide="ignore"):
            whole = logit(np.array(rates))
    else:
        whole = intercepts_for_rates(het, rates)
    return {k: whole[:k] for k in range(1, len(rates) + 1)}


def _weighted_auc(
    score: NDArray[np.float64], label: NDArray[np.bool_], weight: NDArray[np.float64]
) -> float:
    """Return P(an accepted round scores higher than a rejected one), ties counting half."""
    _, group = np.unique(score, return_inverse=True)
    positive = np.bincount(group, weight * label)
    negative = np.bincount(group, weight * ~label)
    pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - 0.5 * negative
    return float(positive @ below / pairs) if pairs > 0 else float("nan")
