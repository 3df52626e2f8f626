"""What it costs a policy to believe something that is not so: one belief wrong at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.acceptance import ParametricAcceptance, load_acceptance
from dspark_sim.core import UserError, parse_spec
from dspark_sim.policies import KernelPolicy, load_policy, policy_draft_len
from dspark_sim.study.seeds import over_seeds
from dspark_sim.study.sweep import sweep
from dspark_sim.throughput import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.config import Scenario

PERFECT = "perfect belief"
VERIFY_ALL = "verify everything"
LAGS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Wrong:
    """One wrong belief: what it is called, the `[belief]` keys it sets, or the policy's lag."""

    name: str
    about: str
    keys: dict[str, Any]
    lag: int | None = None


@dataclass(frozen=True)
class Doubts:
    """How wrong the beliefs of a study are.

    Parameters
    ----------
    stale_context : int
        KV tokens per request that the stale table was measured with; where the profile has no
        context term, such a table does not differ and is left out.
    stale_profile : str or None
        A profile whose table stands in for a stale one.
    raw_scale : float
        What a drafter's logits are too large by before calibration. A recording that keeps its
        temperatures has its own raw confidences, and no need of this.
    drift_from : str or None
        The law that the confidences were calibrated on, as `chat-dspark` where the traffic is
        code: they are off by the mean difference of both laws' logits per position.
    """

    stale_context: int = 8192
    stale_profile: str | None = None
    raw_scale: float = 1.8
    drift_from: str | None = None

    def beliefs(self, scenario: Scenario, policy: str) -> list[Wrong]:
        """Return the wrong beliefs that a policy can hold in a scenario, the perfect one first."""
        profile = load_profile(scenario.profile, scenario.profile_set)
        context = profile.context_ms_per_kv_token > 0
        recorded = load_acceptance(scenario.acceptance, scenario.num_speculative_tokens)
        right: dict[str, Any] = {"context": True} if context else {}
        if recorded.temperatures:
            right["temperatures"] = "recorded"
        found = [
            Wrong(PERFECT, "the engine's own costs, calibrated confidences", right),
            Wrong("flat table", "every batch costs the same", right | {"table": "flat"}),
        ]
        if context:
            stale = {"context": False, "context_tokens": self.stale_context}
            found += [
                Wrong("no context term", "the table at no context", right | {"context": False}),
                Wrong("stale table", f"measured at {self.stale_context:,} tokens", right | stale),
            ]
        if self.stale_profile:
            other = right | {"profile": self.stale_profile}
            found.append(Wrong("other table", f"that of {self.stale_profile}", other))
        found += [
            Wrong("floor lookup", "the measured size below", right | {"lookup": "floor"}),
            Wrong("no draft term", "drafting is free", right | {"draft": False}),
            self._raw(right),
        ]
        if self.drift_from:
            bias = drift(self.drift_from, scenario)
            about = f"calibrated on {self.drift_from}: logits off by {bias:+.2f}"
            found.append(Wrong("drift", about, right | {"confidence_bias": bias}))
        found += [
            Wrong(f"lag {lag}", "budget from survival so many steps old", right, lag)
            for lag in _other_lags(policy, scenario.num_speculative_tokens)
        ]
        return found

    def _raw(self, right: dict[str, Any]) -> Wrong:
        if "temperatures" in right:
            return Wrong("raw confidence", "as recorded", right | {"temperatures": None})
        scale = {"confidence_scale": self.raw_scale}
        return Wrong("raw confidence", f"logits x {self.raw_scale:g}", right | scale)


def drift(source: str, scenario: Scenario) -> float:
    """Return the mean over positions of logit(rate of `source`) - logit(rate of the truth)."""
    from scipy.special import logit

    gamma = scenario.num_speculative_tokens
    laws = [load_acceptance(name, gamma) for name in (source, scenario.acceptance)]
    for law in laws:
        if not isinstance(law, ParametricAcceptance) or not law.rates:
            raise UserError(f"drift needs two laws of published rates, '{law.name}' is none")
    told, true = (np.array(law.rates) for law in laws if isinstance(law, ParametricAcceptance))
    shared = min(len(told), len(true), gamma)
    return float(np.mean(logit(told[:shared]) - logit(true[:shared])))


def _other_lags(policy: str, gamma: int) -> list[int]:
    """Return the lags that a policy could have and has not; none where it knows no lag."""
    found = []
    own = load_policy(policy, gamma)
    for lag in LAGS:
        try:
            other = load_policy(with_lag(policy, lag), gamma)
        except UserError:
            return []
        if not isinstance(other, KernelPolicy) or not isinstance(own, KernelPolicy):
            return []
        if other.lag != own.lag:
            found.append(lag)
    return found


def with_lag(policy: str, lag: int) -> str:
    """Return a policy's name with another lag.

    >>> with_lag("vllm", 3), with_lag("dspark-async:lag=1", 2)
    ('vllm:lag=3', 'dspark-async:lag=2')
    """
    name, args, keywords = parse_spec(policy)
    words = [*args, *(f"{key}={value}" for key, value in (keywords | {"lag": str(lag)}).items())]
    return f"{name}:{','.join(words)}"


def belief_study(
    scenario: Scenario,
    policies: Sequence[str],
    concurrency: Sequence[int] = (),
    request_rate: Sequence[float] = (),
    seeds: Sequence[int] = (0, 1, 2),
    *,
    doubts: Doubts | None = None,
    jobs: int = 1,
) -> pd.DataFrame:
    """Degrade what each policy believes, one belief at a time, and measure what it loses.

    Returns
    -------
    DataFrame
        One row per policy, load and belief: mean `tok_s_gpu` and `verify_budget`, and `loss_pct`,
        the throughput lost against the policy with perfect belief (paired by seed, negative where
        the wrong belief gains), with its 95 % interval. `verify everything` is the static policy
        that verifies all that is drafted.
    """
    runs = []
    for policy in dict.fromkeys(policies):
        gamma = policy_draft_len(
            load_policy(policy, scenario.num_speculative_tokens), scenario.num_speculative_tokens
        )
        wrong = (doubts or Doubts()).beliefs(scenario, policy)
        wrong.append(Wrong(VERIFY_ALL, "no rule at all", {}))
        for one in wrong:
            name = policy if one.lag is None else with_lag(policy, one.lag)
            name = f"fixed:{gamma}" if one.name == VERIFY_ALL else name
            values = scenario.model_dump()
            values["belief"] = values["belief"] | one.keys
            table = sweep(
                type(scenario).check(values), [name], concurrency, request_rate, seeds, jobs=jobs
            )
            runs.append(table.assign(policy=policy, belief=one.name, about=one.about))
    return _losses(pd.concat(runs, ignore_index=True))


def _losses(runs: pd.DataFrame) -> pd.DataFrame:
    keys = ["policy", "concurrency", "request_rate"]
    right = runs[runs["belief"] == PERFECT][[*keys, "seed", "tok_s_gpu"]]
    pairs = runs.merge(right, "left", [*keys, "seed"], suffixes=("", "_perfect"))
    best = pairs["tok_s_gpu_perfect"].where(pairs["tok_s_gpu_perfect"] > 0, nan)
    pairs["loss_pct"] = 100 * (1 - pairs["tok_s_gpu"] / best)
    metrics = ["tok_s_gpu", "verify_budget", "loss_pct"]
    order = {name: place for place, name in enumerate(dict.fromkeys(pairs["belief"]))}
    ranked = pairs.assign(
        rank=pairs["belief"].map(order), first=pd.factorize(pairs["policy"])[0]
    ).sort_values(["first", "concurrency", "request_rate", "rank"], kind="stable")
    return over_seeds(ranked, [*keys, "belief", "about"], metrics, counted="seed")
