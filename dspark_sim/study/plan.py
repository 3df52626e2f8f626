"""From a trace and an SLO to a fleet: the policy, the replicas, the GPUs and what a token costs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.policies import is_lossless, load_policy, policy_draft_len
from dspark_sim.simulator import simulate
from dspark_sim.simulator.simulate import load_scenario_trace
from dspark_sim.study.capacity import Bench, Capacity, good_share, replicas_for
from dspark_sim.study.inputs import SharedInputs
from dspark_sim.study.pareto import pareto_frontier
from dspark_sim.study.slo import MET, Slo
from dspark_sim.study.workers import Workers
from dspark_sim.throughput import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.config import Scenario
    from dspark_sim.study.drafter_memory import DrafterMemory
    from dspark_sim.trace import Trace

METRICS = ("tok_s_gpu", "tok_s_user", "acceptance_length", "verify_budget", "utilisation",
           "kv_wait_fraction", "slot_wait_fraction", "preemptions")  # fmt: skip
MOST = 2
"""A fleet grows to at most this many times what the rate asks for."""


@dataclass(frozen=True)
class Plan:
    """The answer of `plan`.

    Attributes
    ----------
    table : DataFrame
        One row per policy (docs/metrics.md lists the columns).
    points : DataFrame
        Every rate that one replica was tried at: `verdict` says whether the SLO held, and
        `on_frontier` marks the joint frontier of lossless policies, of points that met it only.
    peak_rate, mean_rate : float
        Of the requests to be served, per second.
    slo : Slo
    recommended : str or None
        The lossless policy that needs the fewest GPUs, None where none keeps the SLO.
    """

    table: pd.DataFrame
    points: pd.DataFrame
    peak_rate: float
    mean_rate: float
    slo: Slo
    recommended: str | None


@dataclass(frozen=True)
class Planner:
    """What a plan is made for.

    Parameters
    ----------
    scenario
        Trace, profile, law, prefill, router and seed; an open loop, by its rate or the trace's
        own times.
    slo
    price_per_gpu_hour : float
        In any currency; NaN leaves costs out.
    peak_window_s : float
        The peak is the largest number of arrivals in a window of this length, over its length.
    requests : int
        Per run of one replica: drawn from the trace's.
    seeds : (int, int)
        Fewest and most per rate.
    tolerance : float
        How closely the largest rate is bracketed.
    drafter_memory
        Takes its share of `kv_tokens`, which is then the target's alone, from policies that draft.
    jobs : int
        Worker processes; the plan does not depend on it.
    """

    scenario: Scenario
    slo: Slo
    price_per_gpu_hour: float = nan
    peak_window_s: float = 60.0
    requests: int = 1000
    seeds: tuple[int, int] = (3, 8)
    tolerance: float = 0.02
    drafter_memory: DrafterMemory | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.scenario.concurrency is not None:
            raise UserError("a plan is made for a rate or a trace's own times, not a concurrency")
        if self.price_per_gpu_hour <= 0 or self.peak_window_s <= 0 or self.tolerance <= 0:
            raise UserError("a plan's price, peak window and tolerance must be positive")
        if not 2 <= self.seeds[0] <= self.seeds[1]:
            raise UserError(f"a plan needs 2 or more seeds per rate, got {self.seeds[0]}")
        if self.requests < 100:
            raise UserError(f"a plan needs 100 or more requests per run, got {self.requests}")

    def plan(self, policies: Sequence[str]) -> Plan:
        """Find each policy's largest rate, size its fleet, and confirm it by simulating the fleet.

        Raises
        ------
        UserError
            A name, file or value cannot be used.
        """
        names = list(dict.fromkeys(policies))
        if not names:
            raise UserError("a plan needs at least one policy")
        capacities = self._capacities(names)
        table = pd.DataFrame([self._row(capacities[name]) for name in names])
        points = self._points([capacities[name] for name in names])
        fits = table[table["lossless"] & table["confirmed"]]
        order = ["gpus", "headroom_pct"]
        best = fits.sort_values(order, ascending=[True, False], kind="stable")["policy"]
        chosen = str(best.iloc[0]) if len(best) else None
        return Plan(table, points, self.peak_rate, self.mean_rate, self.slo, chosen)

    @cached_property
    def trace(self) -> Trace:
        """The requests that the fleet has to serve."""
        return load_scenario_trace(self.scenario)

    @property
    def mean_rate(self) -> float:
        """Requests per second, over the whole trace."""
        return self.scenario.request_rate or self.trace.rate_per_s

    @property
    def peak_rate(self) -> float:
        """Requests per second of the busiest window; a rate that was given is its own peak."""
        return self.scenario.request_rate or self._peak[1]

    @cached_property
    def _peak(self) -> tuple[float, float]:
        times = self.trace.requests["arrival_s"].to_numpy()
        window = min(self.peak_window_s, self.trace.duration_s)
        if not window > 0:
            raise UserError(f"trace '{self.trace.name}' has no duration: give --request-rate")
        counts = np.searchsorted(times, times + window, side="left") - np.arange(len(times))
        first = int(np.argmax(counts))
        return float(times[first]), float(counts[first] / window)

    def scenario_of(self, policy: str) -> Scenario:
        """Return the scenario under a policy, with the KV cache that its drafter leaves."""
        own = self.scenario.model_copy(update={"policy": policy, "goodput": dict(self.slo.limits)})
        gamma = self.scenario.num_speculative_tokens
        drafts = policy_draft_len(load_policy(policy, gamma), gamma) > 0
        if self.drafter_memory is None or not drafts:
            return own
        alone = load_profile(own.profile, own.profile_set).kv_tokens
        if alone is None:
            raise UserError(
                f"profile '{own.profile}' has unlimited kv_tokens, from which a drafter takes "
                "nothing: give the target's own with --set profile_set.kv_tokens=N"
            )
        tokens = self.drafter_memory.kv_tokens(alone)
        return own.model_copy(update={"profile_set": {**own.profile_set, "kv_tokens": tokens}})

    def _capacities(self, names: Sequence[str]) -> dict[str, Capacity]:
        """Return the capacity of every policy; policies with the same KV cache share inputs."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(repr(self.scenario_of(name).profile_set), []).append(name)
        found = {}
        for group in groups.values():
            scenario = self._drawn(self.scenario_of(group[0]))
            inputs = SharedInputs(scenario, group)
            with ExitStack() as stack:
                workers = Workers("loky", self.jobs)
                bench = Bench(
                    scenario, self.slo, stack.enter_context(workers.open(inputs, None)),
                    self.requests, self.seeds, self.tolerance,
                )  # fmt: skip
                found.update({name: bench.capacity(name) for name in group})
        return found

    def _drawn(self, scenario: Scenario) -> Scenario:
        """Return the scenario with requests drawn from its trace instead of the first of it."""
        if scenario.trace.startswith("synth:"):
            return scenario
        if set(",=:") & set(scenario.trace):
            raise UserError(f"a trace's path must hold no comma, colon or =, got {scenario.trace}")
        return scenario.model_copy(update={"trace": f"synth:empirical,from={scenario.trace}"})

    def _row(self, capacity: Capacity) -> dict[str, Any]:
        """Return a policy's line: capacity, fleet, cost and what simulating the fleet says."""
        at, name = capacity.at, capacity.policy
        row: dict[str, Any] = {
            "policy": name, "lossless": is_lossless(name), "feasible": capacity.rate > 0,
            "limit": capacity.limit, "because": capacity.because, "max_rate": capacity.rate,
            "max_rate_high": capacity.rate_high,
        }  # fmt: skip
        keys = (*METRICS[:2], *(f"{key}_p{self.slo.percentile}_ms" for key in self.slo.limits))
        row |= {key: nan if at is None else at.mean(key) for key in keys}
        needed = replicas_for(self.peak_rate, capacity.rate)
        fleet = self._fleet(capacity, int(needed)) if isfinite(needed) else _NO_FLEET
        gpus = fleet["replicas"] * load_profile(self.scenario.profile).num_gpus
        per_hour = gpus * self.price_per_gpu_hour
        tokens = float(self.trace.requests["output_tokens"].mean()) * 3600 / 1e6
        return row | {
            "replicas_by_rate": needed if isfinite(needed) else nan,
            **fleet,
            "gpus": gpus,
            "headroom_pct": 100 * (fleet["replicas"] * capacity.rate / self.peak_rate - 1),
            "cost_per_mtok_peak": per_hour / (self.peak_rate * tokens),
            "cost_per_mtok": per_hour / (self.mean_rate * tokens),
        }

    def _fleet(self, capacity: Capacity, needed: int) -> dict[str, Any]:
        """Simulate the fleet, and one with a replica more until the SLO holds at the peak."""
        for replicas in range(needed, MOST * needed + 1):
            scenario = self.scenario_of(capacity.policy).model_copy(
                update={"replicas": replicas, "record": "requests"}
            )
            result = simulate(scenario)
            values = self.slo.values_of(self._at_peak(result.requests))
            confirmed = self.slo.worst(values)[1] <= 1
            if confirmed:
                break
        predicted = self._good(capacity, replicas) * result.summary["request_throughput"]
        goodput = result.summary["request_goodput"]
        return {
            "replicas": replicas,
            "confirmed": bool(confirmed),
            **{f"peak_{name}_ms": value for name, value in values.items()},
            "goodput": goodput,
            "goodput_predicted": predicted,
            "goodput_error_pct": 100 * (goodput / predicted - 1) if predicted else nan,
        }

    def _at_peak(self, requests: pd.DataFrame) -> pd.DataFrame:
        """Return the requests that arrive in the busiest window; all, where a rate was given."""
        if self.scenario.request_rate is not None:
            return requests
        start = self._peak[0]
        arrival = requests["arrival_s"]
        return requests[(arrival >= start) & (arrival < start + self.peak_window_s)]

    def _good(self, capacity: Capacity, replicas: int) -> float:
        """Return the share of good requests that one replica's points promise for the trace."""
        if self.scenario.request_rate is not None:
            return good_share(capacity.points, self.mean_rate / replicas)
        times = self.trace.requests["arrival_s"].to_numpy()
        window = min(self.peak_window_s, self.trace.duration_s)
        counts = np.bincount(((times - times[0]) // window).astype(np.int64))
        rates = counts / window / replicas
        return float(np.average([good_share(capacity.points, r) for r in rates], weights=counts))

    def _points(self, capacities: Sequence[Capacity]) -> pd.DataFrame:
        keys = (*METRICS, *(f"{key}_p{self.slo.percentile}_ms" for key in self.slo.limits))
        rows = [
            {
                "policy": capacity.policy, "rate": point.rate, "verdict": point.verdict,
                "n_seeds": len(point.runs), "good_share": point.good,
                **{key: point.mean(key) for key in keys},
            }
            for capacity in capacities
            for point in capacity.points
        ]  # fmt: skip
        columns = ["policy", "rate", "verdict", "n_seeds", "good_share", *keys]
        table = pd.DataFrame(rows, columns=columns)
        table["lossless"] = table["policy"].map(is_lossless).astype(bool)
        kept = (table["verdict"] == MET) & table["lossless"]
        user = table["tok_s_user"].astype(float).where(kept)
        table["on_frontier"] = pareto_frontier(user, table["tok_s_gpu"].astype(float))
        return table


_NO_FLEET: dict[str, Any] = {
    "replicas": nan, "confirmed": False, "goodput": nan, "goodput_predicted": nan,
    "goodput_error_pct": nan,
}  # fmt: skip


def plan(scenario: Scenario, slo: Slo, policies: Sequence[str], **settings: Any) -> Plan:
    """Return the plan of a scenario; `settings` are the fields of `Planner`."""
    return replace(Planner(scenario, slo), **settings).plan(policies)
