"""When requests arrive: Poisson, gamma with a chosen burstiness, or evenly spaced."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspark_sim.core import UserError, unknown_name

PROCESSES = ("constant", "gamma", "poisson")


class Streams(NamedTuple):
    """One generator per concern, so that lengths do not change with the arrival process."""

    arrivals: np.random.Generator
    lengths: np.random.Generator


def streams(seed: int) -> Streams:
    """Spawn the generators of a trace from one seed, a whole number of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UserError(f"seed must be a whole number of at least 0, got {seed}")
    first, second = np.random.SeedSequence(int(seed)).spawn(2)
    return Streams(np.random.default_rng(first), np.random.default_rng(second))


def arrival_times(
    process: str, rate_per_s: float, n: int, rng: np.random.Generator, cv: float | None = None
) -> npt.NDArray[np.float64]:
    """Draw `n` arrival times in seconds, shape (n,), the first at 0.

    The gaps have mean 1/rate and coefficient of variation 1 (poisson), `cv` (gamma, shape 1/cv²)
    or 0 (constant). The rate only stretches them: one seed gives one pattern at every rate. An
    infinite rate puts all requests at 0.
    """
    check(process, rate_per_s, cv)
    if math.isinf(rate_per_s):
        return np.zeros(n)
    if process == "constant":
        return np.arange(n) / rate_per_s
    if process == "gamma" and cv is not None:
        gaps = rng.gamma(1.0 / cv**2, cv**2, size=n)
    else:
        gaps = rng.standard_exponential(size=n)
    times: npt.NDArray[np.float64] = (np.cumsum(gaps) - gaps[0]) / rate_per_s
    return times


def check(process: str, rate_per_s: float, cv: float | None) -> None:
    """Raise UserError unless process, rate and burstiness fit together."""
    if process not in PROCESSES:
        raise unknown_name("arrival process", process, PROCESSES)
    if not rate_per_s > 0:
        raise UserError(f"arrival rate must be positive (requests per second), got {rate_per_s}")
    if process == "gamma":
        if cv is None:
            raise UserError("gamma arrivals need cv, the coefficient of variation of their gaps")
        if not 0.01 <= cv <= 100:
            raise UserError(f"cv of gamma arrivals must be from 0.01 to 100, got {cv}")
    elif cv is not None:
        raise UserError(f"cv is for gamma arrivals only, got cv={cv:g} with '{process}'")


def describe(process: str, rate_per_s: float, cv: float | None) -> str:
    """Say what `arrival_times` drew, for a trace's origin: `gamma arrivals (cv 2) at 5/s`."""
    if math.isinf(rate_per_s):
        return "all arrivals at once"
    shape = f" (cv {cv:g})" if cv is not None else ""
    return f"{process} arrivals{shape} at {rate_per_s:g}/s"
