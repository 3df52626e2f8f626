"""What a policy's parameter is tuned for: one number per load, or one for all loads together."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.core import UserError, parse_number, parse_spec, unknown_name
from dspark_sim.study.pareto import area_under_frontier, pareto_frontier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNITS = {
    "throughput": "tok/s/GPU",
    "throughput-at": "tok/s/GPU",
    "area": "tok/s/GPU x tok/s/user",
    "goodput": "requests/s within the SLO",
}


@dataclass(frozen=True)
class Objective:
    """What is made as large as it can be.

    Parameters
    ----------
    name : "throughput", "goodput", "throughput-at" or "area"
        tok/s/GPU at each load; requests/s within the SLO at each load; tok/s/GPU of all loads
        together where users get at least `floor` tok/s; area under the frontier over all loads.
    floor : float
        Of `throughput-at`, tok/s/user.
    """

    name: str
    floor: float = nan

    def __post_init__(self) -> None:
        if self.name not in UNITS:
            raise unknown_name("objective", self.name, UNITS)
        if (self.name == "throughput-at") != (self.floor > 0):
            raise UserError(
                "objective throughput-at needs its tok/s/user, as throughput-at:80; no other does"
            )

    @property
    def whole(self) -> bool:
        """Whether it is one number for all loads together."""
        return self.name in ("throughput-at", "area")

    def value(self, runs: Sequence[Mapping[str, Any]]) -> float:
        """Return the objective of one seed from the summaries of its loads, one unless `whole`.

        A policy offers at `floor` what its own frontier has there: to the left of the frontier its
        best throughput, to the right of it nothing.
        """
        if self.name == "throughput":
            return float(runs[0]["tok_s_gpu"])
        if self.name == "goodput":
            return float(runs[0]["request_goodput"])
        frame = pd.DataFrame(
            {key: [run[key] for run in runs] for key in ("tok_s_user", "tok_s_gpu")}
        )
        if self.name == "area":
            frame["policy"], frame["seed"], frame["request_rate"] = "one", 0, nan
            frame["concurrency"] = np.arange(len(frame))
            return area_under_frontier(frame, "one")
        best = frame[pareto_frontier(frame["tok_s_user"], frame["tok_s_gpu"])]
        best = best.sort_values("tok_s_user")
        user, gpu = best["tok_s_user"].to_numpy(), best["tok_s_gpu"].to_numpy()
        return float(np.interp(self.floor, user, gpu, right=0.0)) if len(best) else 0.0


def parse_objective(text: str) -> Objective:
    """Read an objective as it is typed: `throughput`, `throughput-at:80`, `area`, `goodput`."""
    name, args, keywords = parse_spec(text)
    if name not in UNITS:
        raise unknown_name("objective", name, UNITS)
    if len(args) > 1 or keywords:
        raise UserError(f"objective '{text}' takes one number at most, as throughput-at:80")
    return Objective(name, parse_number(args[0], f"objective '{text}'") if args else nan)
