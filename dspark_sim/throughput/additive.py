"""The additive form of step time, T = bias + α(R) + θ(M) + κ · KV tokens, and where it is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.throughput.grid import mean_by_group
from dspark_sim.throughput.separation import grid_parts, settle, solve_alpha_and_kappa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from dspark_sim.throughput.profile import EngineProfile

    Floats = NDArray[np.float64]

WRONG = 0.05
_SHOWN = 12


@dataclass(frozen=True, eq=False)
class AdditiveForm:
    """T(R, M, KV) = bias + α(R) + θ(M) + κ · KV tokens read, as SGLang and TensorRT-LLM keep it.

    Only sums of the terms are determined. By convention the smallest α and the smallest θ are 0;
    numbers of requests that no batch size connects are settled as `separation.settle` says.

    Attributes
    ----------
    bias_ms : float
    alpha : DataFrame
        num_requests, ms; empty where the grid does not state its requests.
    theta : DataFrame
        batch_tokens, ms.
    kappa_ms_per_kv_token : float
        Per KV token that the step reads, over all requests.
    residuals : DataFrame
        One row per measured point: num_requests (0: not stated), batch_tokens, kv_tokens_read, ms,
        fitted_ms, error (fitted / measured - 1).
    notes : tuple of str
        What the grid could not tell, and what was assumed instead.
    """

    bias_ms: float
    alpha: pd.DataFrame
    theta: pd.DataFrame
    kappa_ms_per_kv_token: float
    residuals: pd.DataFrame
    notes: tuple[str, ...]

    def step_ms(
        self, num_requests: ArrayLike, batch_tokens: ArrayLike, kv_tokens_read: ArrayLike = 0
    ) -> Floats:
        """Step time in ms: α and θ interpolated between their points, held beyond them."""
        requests, tokens = np.asarray(num_requests, float), np.asarray(batch_tokens, float)
        theta = np.interp(tokens, self.theta["batch_tokens"], self.theta["ms"])
        step = self.bias_ms + theta + self.kappa_ms_per_kv_token * np.asarray(kv_tokens_read)
        if self.alpha.empty:
            return np.asarray(step + 0.0 * requests)
        return np.asarray(step + np.interp(requests, self.alpha["num_requests"], self.alpha["ms"]))

    def wrong(self, limit: float = WRONG) -> pd.DataFrame:
        """Return the measured points that the form misses by more than `limit`, worst first."""
        errors = self.residuals["error"].abs()
        worst = errors[errors > limit].sort_values(ascending=False, kind="stable")
        return self.residuals.loc[worst.index].reset_index(drop=True)

    def summary(self, limit: float = WRONG) -> dict[str, Any]:
        """Return the form and what it misses by more than `limit` as plain values."""
        return {
            "bias_ms": self.bias_ms,
            "alpha": self.alpha.to_dict("records"),
            "theta": self.theta.to_dict("records"),
            "kappa_ms_per_kv_token": self.kappa_ms_per_kv_token,
            "notes": list(self.notes),
            "num_points": len(self.residuals),
            "largest_error": float(self.residuals["error"].abs().max()),
            "wrong": self.wrong(limit).to_dict("records"),
        }

    def report(self, limit: float = WRONG) -> str:
        """Say how well the form fits and where it is wrong by more than `limit`."""
        rows, wrong = self.residuals, self.wrong(limit)
        worst = self.wrong(-1.0).head(1)
        lines = [
            f"T = {self.bias_ms:.4g} ms + alpha(R) + theta(M) + "
            f"{self.kappa_ms_per_kv_token:.3g} ms x KV tokens read; {len(rows)} measured points, "
            f"{len(self.theta)} batch sizes, {len(self.alpha)} numbers of requests",
            *self.notes,
            *(f"largest error {text}" for text in _points(worst)),
            f"wrong by more than {limit:.0%} at {len(wrong)} of {len(rows)} points"
            + (":" if len(wrong) else ""),
            *(f"  {text}" for text in _points(wrong.head(_SHOWN))),
        ]
        if len(wrong) > _SHOWN:
            lines.append(f"  and {len(wrong) - _SHOWN} more")
        return "\n".join(lines)


def _points(rows: pd.DataFrame) -> Iterator[str]:
    for row in rows.to_dict("records"):
        requests = f"R = {row['num_requests']}, " if row["num_requests"] else ""
        yield (
            f"{row['error']:+.1%} at {requests}M = {row['batch_tokens']}, "
            f"{row['kv_tokens_read']:,} KV tokens: {row['ms']:.4g} ms measured, "
            f"{row['fitted_ms']:.4g} ms fitted"
        )


def additive_form(profile: EngineProfile) -> AdditiveForm:
    """Fit the additive form to a profile's measured verify grid; its overhead is not part of it.

    A table that does not state its requests is fitted exactly by θ(M); α is then the profile's own
    `requests` table.
    """
    rows = profile.verify
    form = fit_additive(rows, profile.context_ms_per_kv_token)
    if profile.requests is None or len(form.alpha):
        return form
    return replace(form, alpha=profile.requests.copy())


def with_additive(profile: EngineProfile, form: AdditiveForm) -> EngineProfile:
    """Return the profile with this form's α and κ; its lookups then answer bias + θ(M) + α + κ."""
    alpha = form.alpha if (form.alpha["ms"] > 0).any() else None
    return replace(profile, requests=alpha, context_ms_per_kv_token=form.kappa_ms_per_kv_token)


def fit_additive(
    rows: pd.DataFrame, kappa: float = 0.0, weights: Floats | None = None
) -> AdditiveForm:
    """Fit the additive form to measured steps by least squares of relative error.

    Parameters
    ----------
    rows : DataFrame
        batch_tokens, ms and, where they are known, num_requests and kv_tokens_read.
    kappa : float
        κ in ms per KV token, taken where the grid cannot tell it.
    weights : array (rows,), optional
        Of the squared errors in ms; by default 1 / ms².
    """
    measured, requests, sizes, kv = _columns(rows)
    weights = 1.0 / np.square(measured) if weights is None else weights
    held, alpha_codes = np.unique(requests, return_inverse=True)
    tokens, theta_codes = np.unique(sizes, return_inverse=True)
    alpha, kappa, notes = solve_alpha_and_kappa(
        measured, kv, alpha_codes, theta_codes, weights, kappa=kappa
    )
    theta = mean_by_group(measured - alpha[alpha_codes] - kappa * kv, theta_codes, weights)
    part = grid_parts(alpha_codes, theta_codes)
    part_of_size = np.zeros(len(tokens), dtype=np.intp)
    part_of_size[theta_codes] = part[alpha_codes]
    alpha, theta = settle(alpha, theta, tokens, part, part_of_size)
    fitted = alpha[alpha_codes] + theta[theta_codes] + kappa * kv
    bias = float(theta.min())
    stated = held > 0
    return AdditiveForm(
        bias,
        pd.DataFrame({"num_requests": held[stated], "ms": alpha[stated]}),
        pd.DataFrame({"batch_tokens": tokens, "ms": theta - bias}),
        kappa,
        pd.DataFrame(
            {
                "num_requests": requests,
                "batch_tokens": sizes,
                "kv_tokens_read": kv.astype(np.int64),
                "ms": measured,
                "fitted_ms": fitted,
                "error": fitted / measured - 1.0,
            }
        ),
        (*notes, *_apart(held, part)),
    )


def _apart(held: NDArray[np.int64], part: NDArray[np.intp]) -> list[str]:
    """Say which numbers of requests have no batch size in common."""
    if part.max() == 0:
        return []
    groups = [", ".join(map(str, held[part == number])) for number in range(part.max() + 1)]
    shown = " | ".join(groups[:6]) + (" | …" if len(groups) > 6 else "")
    return [
        "these numbers of requests share no batch size, "
        f"so alpha between them rests on theta being one curve: {shown}"
    ]


def _columns(rows: pd.DataFrame) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64], Floats]:
    none = np.zeros(len(rows))
    requests = np.asarray(rows.get("num_requests", none), dtype=np.int64)
    kv = np.asarray(rows.get("kv_tokens_read", none), dtype=np.float64)
    return rows["ms"].to_numpy(float), requests, rows["batch_tokens"].to_numpy(np.int64), kv
