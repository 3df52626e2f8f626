"""V3: static confidence thresholds (arXiv 2607.05147, Fig. 5) from rates and calibration figures.

The law of each domain has Fig. 2's rates, shifted on the logit to Table 1's length of the benchmark
that Fig. 5 shows. What the drafter reports where the truth is p is read off Fig. 6's reliability
diagram. What remains, how much requests and tokens differ and how noisy the confidence is, is
fitted per domain on three thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit

from dspark_sim.acceptance import ParametricAcceptance, draw_blocks, fit_held_out
from dspark_sim.acceptance.published import CONDITIONAL_RATES
from dspark_sim.acceptance.reliability import calibration_metrics
from dspark_sim.acceptance.replay import replay, threshold_lengths
from dspark_sim.study.validate.case import Check, Point, Settings, Validation
from dspark_sim.study.validate.published import published, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from dspark_sim.acceptance.calibration import Blocks

    Floats = NDArray[np.float64]

TITLE = "Static thresholds and calibration of DSpark on Qwen3-4B"
BENCHMARKS = {"math": "GSM8K", "code": "HumanEval", "chat": "MT-Bench"}
CALIBRATED_ON = "Alpaca"
FITTED = (0.0, 0.5, 0.9)
"""Thresholds that are fitted: the ends and the middle."""
_POSITIONS = 64


@dataclass(frozen=True)
class Drafter:
    """DSpark on one benchmark: a law to be completed by heterogeneity and noise.

    Attributes
    ----------
    rates : (7,)
        Conditional acceptance.
    scale, bias : float
        What it reports where the rate is p: ``sigmoid(scale * logit(p) + bias)``, before noise.
    num_requests : int
        How many are drawn.
    """

    rates: tuple[float, ...]
    scale: float
    bias: float
    num_requests: int

    @classmethod
    def on(cls, domain: str, benchmark: str, num_requests: int) -> Drafter:
        """Return Fig. 2's drafter of a domain, shifted to Table 1's length of a benchmark."""
        from scipy.optimize import brentq

        wanted = next(
            row["acceptance_length"]
            for row in rows(published("dspark_table1"))
            if (row["drafter"], row["benchmark"]) == ("dspark", benchmark)
        )
        start = logit(np.array(CONDITIONAL_RATES[f"{domain}-dspark"]))

        def gap(shift: float) -> float:
            return float(1.0 + np.cumprod(expit(start + shift)).sum() - wanted)

        shift = brentq(gap, -5.0, 5.0)
        rates = tuple(float(rate) for rate in expit(start + shift))
        return cls(rates, *over_confidence(), num_requests)

    def blocks(self, heterogeneity: float, noise: float) -> Blocks:
        """Return blocks drafted at every position of some requests."""
        law = ParametricAcceptance(
            "dspark",
            rates=self.rates,
            request_sd=abs(heterogeneity),
            token_sd=abs(heterogeneity),
            confidence_scale=self.scale,
            confidence_bias=self.bias,
            confidence_noise=abs(noise),
        )
        return draw_blocks(law, self.num_requests, _POSITIONS)


def run(settings: Settings) -> Validation:
    """Fit each domain on three thresholds; predict the other seven, and Table 1 from Fig. 2."""
    requests = 200 if settings.quick else 1000
    points = [*_table_1(), *_calibration(requests)]
    swept, found = published("dspark_fig5"), []
    for domain, benchmark in BENCHMARKS.items():
        drafter = Drafter.on(domain, benchmark, requests)
        mine = swept[swept["domain"] == domain]
        heterogeneity, noise = _fitted(drafter, mine)
        blocks = drafter.blocks(heterogeneity, noise)
        points += _sweep(domain, blocks, mine)
        found += [
            f"{domain}: heterogeneity {heterogeneity:.2f}, confidence noise {noise:.2f}",
            _under_sts(domain, blocks),
        ]
    scale, bias = over_confidence()
    return Validation(
        case="V3",
        title=TITLE,
        fitted="per domain, heterogeneity and confidence noise to accepted and rejected tokens at "
        f"thresholds {', '.join(f'{t:g}' for t in FITTED)}; heterogeneity on Alpaca to the AUC of "
        "Fig. 6",
        fit_points=2 * len(FITTED) * len(BENCHMARKS) + 4,
        parameters=2 * len(BENCHMARKS) + 1,
        by_hand=(
            f"where the truth is p the drafter reports sigmoid({scale:.2f} logit(p) + {bias:.2f}), "
            "for every domain and position: Fig. 6's reliability at position 1 before STS",
            "requests and tokens differ by the same standard deviation",
            "Fig. 2's rates, means of three benchmarks, are shifted on the logit to Table 1's "
            "length of the benchmark shown",
        ),
        at="threshold",
        axes={
            "acceptance_length": "domain (0 math, 1 code, 2 chat)",
            "ece_pct": "draft position",
            "auc": "draft position",
        },
        points=tuple(points),
        checks=tuple(_checks(points)),
        notes=(*found, _ENDS, _SHAPE, "errors of thresholds are in % of the tokens per step"),
    )


_ENDS = (
    "the paper's rounds verify 7.95 tokens at threshold 0, not 8: a response's last round is cut "
    "at its end, ours counts whole"
)
_SHAPE = (
    "chat is worst: the law's logit is normal, real confidences are skewed. Of Fig. 6's first "
    "tokens 38 % are reported above 0.95 and 1.2 % below 0.3; the law has too many low and too "
    "few middling ones, so that low thresholds cut too early and high ones too late"
)


def over_confidence() -> tuple[float, float]:
    """Return scale and bias of the reported logit by Fig. 6's reliability at position 1."""
    table = published("dspark_fig6_reliability")
    reported = logit(table["predicted"].to_numpy())
    seen, share = table["observed"].to_numpy(), table["share"].to_numpy()

    def misfit(values: Floats) -> float:
        truth = expit((reported - values[1]) / values[0])
        return -float(share @ (seen * np.log(truth) + (1.0 - seen) * np.log1p(-truth)))

    scale, bias = _minimised(misfit, (1.0, 0.0), 1e-9)
    return float(scale), float(bias)


def _calibration(requests: int) -> Iterator[Point]:
    """Compare Fig. 6's calibration errors and AUC; heterogeneity is fitted to the AUC."""
    table = published("dspark_fig6")
    drafter = Drafter.on("chat", CALIBRATED_ON, requests)
    places = table["position"].to_numpy() - 1

    def measured(blocks: Blocks) -> pd.DataFrame:
        return calibration_metrics(blocks.confidence, blocks.accepted).iloc[places]

    def misfit(values: Floats) -> float:
        auc = measured(drafter.blocks(values[0], 0.0).rounds())["auc"].to_numpy()
        return float(((auc - table["auc"].to_numpy()) ** 2).sum())

    blocks = drafter.blocks(_minimised(misfit, (1.0,))[0], 0.0).rounds()
    scaling, test = fit_held_out(blocks)
    before = measured(blocks)
    after = measured(replace(test, confidence=scaling.apply(test.confidence)))
    for series, column, values in (
        ("Alpaca, before STS", "ece_before_pct", 100.0 * before["ece"]),
        ("Alpaca, after STS", "ece_after_pct", 100.0 * after["ece"]),
    ):
        for position, known, value in zip(table["position"], table[column], values, strict=True):
            yield Point(series, "ece_pct", position, known, float(value), of=100.0)
    for position, known, value in zip(table["position"], table["auc"], before["auc"], strict=True):
        yield Point("Alpaca", "auc", position, known, float(value), fitted=True)


def _minimised(
    misfit: Callable[[Floats], float], start: tuple[float, ...], tolerance: float = 1e-4
) -> Floats:
    from scipy.optimize import minimize

    options = {"xatol": 3e-3, "fatol": tolerance, "maxfev": 120}
    how: dict[str, Any] = {"method": "Nelder-Mead", "options": options}
    found: Any = minimize(misfit, np.array(start), **how)
    return np.asarray(found.x, dtype=np.float64)


def _tokens(blocks: Blocks, threshold: float) -> tuple[float, float]:
    """Return accepted (bonus included) and rejected tokens per round at a threshold."""
    rounds = replay(blocks, threshold_lengths(blocks.confidence, threshold))
    accepted, verified = rounds.accepted.mean(), rounds.verified.mean()
    return 1.0 + float(accepted), float(verified - accepted)


def _fitted(drafter: Drafter, swept: pd.DataFrame) -> tuple[float, float]:
    """Return the heterogeneity and noise that give the fitted thresholds best."""
    known = swept[swept["threshold"].isin(FITTED)]
    wanted = known[["accepted", "rejected"]].to_numpy()
    total = wanted.sum(axis=1, keepdims=True)

    def misfit(values: Floats) -> float:
        blocks = drafter.blocks(values[0], values[1])
        now = np.array([_tokens(blocks, threshold) for threshold in known["threshold"]])
        return float((((now - wanted) / total) ** 2).sum())

    heterogeneity, noise = np.abs(_minimised(misfit, (1.0, 0.3)))
    return float(heterogeneity), float(noise)


def _sweep(domain: str, blocks: Blocks, swept: pd.DataFrame) -> Iterator[Point]:
    for row in rows(swept):
        at, total = row["threshold"], row["accepted"] + row["rejected"]
        for quantity, value in zip(("accepted", "rejected"), _tokens(blocks, at), strict=True):
            yield Point(domain, quantity, at, row[quantity], value, fitted=at in FITTED, of=total)


def _under_sts(domain: str, blocks: Blocks) -> str:
    """Say what a threshold of 0.6 verifies with and without calibration."""
    scaling, test = fit_held_out(blocks)
    before = _tokens(test, 0.6)
    after = _tokens(replace(test, confidence=scaling.apply(test.confidence)), 0.6)
    return (
        f"{domain}: STS would change threshold 0.6 from {before[0]:.2f} accepted and "
        f"{before[1]:.2f} rejected tokens to {after[0]:.2f} and {after[1]:.2f} (not published)"
    )


def _table_1() -> Iterator[Point]:
    """Compare 1 + Σ Π of Fig. 2's rates with the mean of Table 1's three benchmarks."""
    table = published("dspark_table1").groupby(["drafter", "domain"], as_index=False)
    means = {
        (row["drafter"], row["domain"]): row["acceptance_length"]
        for row in rows(table[["acceptance_length"]].mean())
    }
    for drafter in ("dspark", "dflash", "eagle3"):
        for place, domain in enumerate(BENCHMARKS):
            value = 1.0 + float(np.cumprod(CONDITIONAL_RATES[f"{domain}-{drafter}"]).sum())
            known = means[drafter, domain]
            yield Point(drafter, "acceptance_length", float(place), known, value)


def _checks(points: Sequence[Point]) -> Iterator[Check]:
    lengths = [abs(p.error_pct) for p in points if p.quantity == "acceptance_length"]
    yield Check("Table 1 from Fig. 2: largest error", max(lengths), 1.0)
    swept = [p for p in points if p.quantity in ("accepted", "rejected") and not p.fitted]
    mean = float(np.mean([abs(p.error_pct) for p in swept]))
    yield Check("thresholds: mean error in % of the tokens per step", mean, 3.0)
