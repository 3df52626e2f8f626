"""The largest load that one replica carries within an SLO, by bisection with confidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.study.run import Run
from dspark_sim.study.slo import MET, NAMES, VIOLATED, Slo, mean_and_half_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.config import Scenario
    from dspark_sim.study.run import CarryOut, Summary

WARM_UP = 0.1  # of a run
WAITS = 0.05  # of the steps: more is a queue for slots or KV blocks
NEAR = 0.97  # of what the full engine does: nearer, compute is what lacks
LEAST = 1 / 1024  # of what the full engine does: less is no load


@dataclass(frozen=True)
class Point:
    """What one replica did at one rate, over its seeds.

    Attributes
    ----------
    rate : float
        Requests per second, Poisson.
    verdict : "met", "violated" or "undecided"
    runs : list of dict
        The summaries of its seeds.
    """

    rate: float
    verdict: str
    runs: Sequence[Summary]

    def mean(self, key: str) -> float:
        """Return a metric's mean over the seeds that have it."""
        values = np.array([nan if run[key] is None else float(run[key]) for run in self.runs])
        return float(np.nanmean(values)) if not np.isnan(values).all() else nan

    @property
    def good(self) -> float:
        """Share of the requests that keep every limit."""
        return self.mean("request_goodput") / self.mean("request_throughput")


@dataclass(frozen=True)
class Capacity:
    """What one replica carries under one policy.

    Attributes
    ----------
    rate, rate_high : float
        The largest rate found within the SLO and the smallest found beyond it, requests/s: the
        truth lies between, with 95 % confidence on either side; 0 where no rate keeps the SLO.
    limit : str
        What binds: "TTFT", "TPOT", "E2EL", "KV", "slots" (max_num_seqs), "compute" or
        "prefill" (separate workers).
    because : str
        One sentence with the numbers behind it.
    points : list of Point
        Every rate that was tried, in order.
    """

    policy: str
    rate: float
    rate_high: float
    limit: str
    because: str
    points: Sequence[Point] = field(repr=False)

    @property
    def at(self) -> Point | None:
        """The point at `rate`."""
        return next((point for point in self.points if point.rate == self.rate), None)


@dataclass(frozen=True)
class Bench:
    """Carries out the runs that a capacity needs.

    Parameters
    ----------
    scenario
        One replica; its load is replaced.
    slo
    carry_out
        From `Workers.open`.
    requests : int
        Per run; its first tenth is left out.
    seeds : (int, int)
        Fewest and most per rate.
    tolerance : float
        Bisection ends where `rate_high / rate` is at most 1 + this.
    """

    scenario: Scenario
    slo: Slo
    carry_out: CarryOut
    requests: int
    seeds: tuple[int, int]
    tolerance: float

    def capacity(self, policy: str) -> Capacity:
        """Bisect for the largest rate of a policy."""
        alone = self._closed(policy, 1, min(self.requests, 200))
        name, ratio = self.slo.worst(self.slo.values(alone))
        if ratio > 1:
            value = self.slo.values(alone)[name]
            why = (
                f"P{self.slo.percentile} {NAMES[name]} is {value:.4g} ms with one request at a "
                f"time, the limit is {self.slo.limits[name]:g} ms"
            )
            return Capacity(policy, 0.0, 0.0, NAMES[name], why, [])
        full = self._closed(policy, self._slots(policy), None)
        top = float(full["request_s"])
        points: dict[float, Point] = {}
        low, high = 0.0, top
        while low == 0.0 or high > low * (1 + self.tolerance):
            rate = sqrt(low * high) if low else high / 2
            if rate < LEAST * top:
                break
            points[rate] = self.point(policy, rate)
            low, high = (rate, high) if points[rate].verdict == MET else (low, rate)
        limit, because = self._binding(points.get(high), full, top)
        return Capacity(
            policy, low, high, limit, because, [points[rate] for rate in sorted(points)]
        )

    def point(self, policy: str, rate: float) -> Point:
        """Run a rate with as many seeds as its verdict needs, at most the most."""
        least, most = self.seeds
        runs: list[Summary] = []
        verdict = ""
        while verdict not in (MET, VIOLATED) and len(runs) < most:
            more = range(len(runs), len(runs) + (least if not runs else 1))
            runs += self._batch([self._open(policy, rate, seed) for seed in more])
            verdict = self.slo.verdict(runs)
        return Point(rate, verdict, runs)

    def _open(self, policy: str, rate: float, seed: int) -> Scenario:
        return self._one(
            policy, request_rate=rate, requests=self.requests, seed=self.scenario.seed + seed,
            warmup_s=WARM_UP * self.requests / rate,
        )  # fmt: skip

    def _closed(self, policy: str, concurrency: int, requests: int | None) -> Summary:
        loop = self._one(policy, concurrency=concurrency, requests=requests)
        return self._batch([loop])[0]

    def _one(self, policy: str, **load: Any) -> Scenario:
        plain = {"concurrency": None, "request_rate": None, "rate_scale": 1.0, "replicas": 1,
                 "warmup_s": 0.0, "cooldown_s": 0.0, "record": "requests"}  # fmt: skip
        keys = {"policy": policy, "goodput": dict(self.slo.limits), **plain, **load}
        return type(self.scenario).check({**self.scenario.model_dump(), **keys})

    def _batch(self, scenarios: Sequence[Scenario]) -> list[Summary]:
        runs = [Run(number, scenario, None) for number, scenario in enumerate(scenarios)]
        found = dict(self.carry_out(runs))
        return [found[number] for number in range(len(runs))]

    def _slots(self, policy: str) -> int:
        from dspark_sim.policies import load_policy, policy_draft_len
        from dspark_sim.throughput import load_profile

        gamma = self.scenario.num_speculative_tokens
        drafted = policy_draft_len(load_policy(policy, gamma), gamma)
        profile = load_profile(self.scenario.profile, self.scenario.profile_set)
        return max(1, min(profile.max_num_seqs, profile.max_num_batched_tokens // (1 + drafted)))

    def _binding(self, beyond: Point | None, full: Summary, top: float) -> tuple[str, str]:
        """Return what binds at the smallest rate beyond the capacity, and why it is that."""
        if beyond is None:
            limit = "KV" if full["kv_wait_fraction"] > WAITS else "compute"
            if self.scenario.prefill.mode == "separate" and full["utilisation"] < NEAR:
                limit = "prefill"
            return limit, f"the full engine finishes {top:.4g} requests/s, and the SLO holds there"
        spread = {
            name: mean_and_half_width([self.slo.values(run)[name] for run in beyond.runs])
            for name in self.slo.limits
        }
        name, _ = self.slo.worst({name: mean + half for name, (mean, half) in spread.items()})
        mean, half = spread[name]
        why = (
            f"P{self.slo.percentile} {NAMES[name]} is {mean:.4g} ± {half:.2g} ms at "
            f"{beyond.rate:.4g} requests/s, the limit is {self.slo.limits[name]:g} ms"
        )
        kv, slots = beyond.mean("kv_wait_fraction"), beyond.mean("slot_wait_fraction")
        if kv > WAITS:
            return "KV", f"{why}; at {kv:.0%} of the steps a request waits for KV blocks"
        if name == "tpot":
            return "TPOT", why
        if slots > WAITS:
            return "slots", f"{why}; at {slots:.0%} of the steps all max_num_seqs slots are taken"
        if beyond.rate > NEAR * top:
            return "compute", f"{why}; the full engine finishes {top:.4g} requests/s"
        return NAMES[name], why


def good_share(points: Sequence[Point], rate: float) -> float:
    """Return the share of good requests at a rate, between the rates that were measured."""
    known = [point for point in points if not isnan(point.good)]
    if not known:
        return nan
    return float(np.interp(rate, [point.rate for point in known], [point.good for point in known]))


def replicas_for(peak: float, rate: float) -> float:
    """Return how many replicas carry a peak rate; infinite where one carries nothing.

    >>> replicas_for(20.0, 6.0)
    4
    """
    return inf if rate <= 0 else max(1, int(np.ceil(peak / rate - 1e-9)))
