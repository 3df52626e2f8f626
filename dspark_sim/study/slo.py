"""Service-level objectives: limits on latencies, and whether several seeds keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import UserError, unknown_name
from dspark_sim.simulator.metrics import PERCENTILES
from dspark_sim.study.seeds import t_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

MET, VIOLATED, UNDECIDED = "met", "violated", "undecided"
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}


@dataclass(frozen=True)
class Slo:
    """Limits in ms by metric (`ttft`, `tpot`, `e2el`), each for the same percentile of requests.

    Raises
    ------
    UserError
        There is no limit, one is not positive, or a metric or the percentile is unknown.
    """

    limits: Mapping[str, float]
    percentile: int = 95

    def __post_init__(self) -> None:
        if not self.limits:
            raise UserError("no SLO is given: --goodput 'ttft:500 tpot:30' (ms)")
        for metric, limit in self.limits.items():
            if metric not in NAMES:
                raise unknown_name("metric", metric, NAMES, "the SLO")
            if not limit > 0:
                raise UserError(f"the SLO's {metric} must be positive, got {limit:g}")
        if self.percentile not in PERCENTILES:
            allowed = ", ".join(map(str, PERCENTILES))
            raise UserError(f"the SLO's percentile must be one of {allowed}, got {self.percentile}")

    def values(self, summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the percentile of each metric in ms, from the summary of a run."""
        return {name: float(summary[f"{name}_p{self.percentile}_ms"]) for name in self.limits}

    def values_of(self, requests: pd.DataFrame) -> dict[str, float]:
        """Return the same from a table of requests; NaN where none of them has the metric."""
        found = {}
        for name in self.limits:
            kept = requests[f"{name}_ms"].dropna()
            found[name] = float(np.percentile(kept, self.percentile)) if len(kept) else np.nan
        return found

    def worst(self, values: Mapping[str, float]) -> tuple[str, float]:
        """Return the metric nearest its limit, or furthest beyond it, and value / limit."""
        ratios = {name: values[name] / limit for name, limit in self.limits.items()}
        known = {name: ratio for name, ratio in ratios.items() if not np.isnan(ratio)}
        name = max(known or ratios, key=lambda one: ratios[one])
        return name, ratios[name]

    def verdict(self, runs: Sequence[Mapping[str, Any]]) -> str:
        """Say whether all limits are kept: surely, surely not, or undecided by these seeds.

        A limit is kept if the 95 % t interval of the mean percentile lies below it.
        """
        below, above = True, False
        for name, limit in self.limits.items():
            mean, half = mean_and_half_width([self.values(run)[name] for run in runs])
            below &= not mean + half > limit  # NaN: no request has the metric, nothing is violated
            above |= bool(mean - half > limit)
        return MET if below else VIOLATED if above else UNDECIDED


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % t interval; infinite for one value."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return float(array.mean()), np.inf
    spread = array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean()), float(t_quantile(len(array) - 1.0, 0.975) * spread)
