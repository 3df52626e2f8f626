"""simulate(scenario): a pure function from a scenario to its result."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance import AcceptanceSource, load_acceptance
from dspark_sim.policies import KernelPolicy, Policy, load_policy, policy_draft_len
from dspark_sim.simulator import state as s
from dspark_sim.simulator.admission import issue
from dspark_sim.simulator.collect import collect
from dspark_sim.simulator.engine import Replica, run
from dspark_sim.simulator.fleet import run_fleet
from dspark_sim.simulator.setup import believed_temperatures, build_engine, build_rule, check_fit
from dspark_sim.throughput import EngineProfile, load_profile
from dspark_sim.trace import Trace, load_trace

if TYPE_CHECKING:
    from dspark_sim.config import Belief, Scenario
    from dspark_sim.simulator.result import Result


@dataclass(frozen=True)
class Inputs:
    """The objects a scenario's names stand for; give some to `simulate` to use your own.

    `believed` stands for `belief.profile`, `temperatures` (T_1..T_γ) for `belief.temperatures`.
    """

    trace: Trace | None = None
    profile: EngineProfile | None = None
    acceptance: AcceptanceSource | None = None
    policy: Policy | None = None
    believed: EngineProfile | None = None
    temperatures: tuple[float, ...] | None = None


def simulate(scenario: Scenario, inputs: Inputs | None = None, *, stepwise: bool = False) -> Result:
    """Run a scenario and return its result.

    Two calls with the same scenario give the same bytes, whatever ran before.

    Parameters
    ----------
    scenario
    inputs
        Objects to use in place of the scenario's names.
    stepwise
        Take step by step even under a built-in policy (slower, same results).

    Raises
    ------
    UserError
        For a name, file or value that cannot be used, and for a request that can never fit.
    """
    given = inputs or Inputs()
    profile = given.profile or load_profile(scenario.profile, scenario.profile_set)
    trace = given.trace or load_scenario_trace(scenario)
    policy = given.policy or _policy(scenario)
    source = given.acceptance or load_acceptance(
        scenario.acceptance, scenario.num_speculative_tokens
    )
    if isinstance(policy, KernelPolicy):
        policy = replace(policy)  # with a memory of its own
    gamma = policy_draft_len(policy, scenario.num_speculative_tokens)
    belief = scenario.belief
    temperatures = given.temperatures
    if temperatures is None:
        temperatures = believed_temperatures(belief, source, gamma)
    acceptance = source.tables(
        trace.requests["category"].tolist(),
        gamma,
        belief.confidence_scale,
        belief.confidence_bias,
        temperatures,
    )
    prompt = trace.requests["prompt_tokens"].to_numpy(np.int64)
    output = trace.requests["output_tokens"].to_numpy(np.int64)
    engine = build_engine(scenario, profile, gamma, trace)
    check_fit(engine, trace, profile)
    believed = given.believed or _believed_profile(belief, profile)
    name = str(getattr(policy, "name", scenario.policy))

    def replica(own: Policy) -> Replica:
        state = s.new_state(engine, prompt, output, scenario.prefill.workers)
        rule = build_rule(own, belief, believed, engine, scenario.extend)
        return Replica(engine, acceptance, rule, own, state, profile.name, name, stepwise)

    replicas = [replica(policy)]
    replicas += [
        replica(copy.deepcopy(given.policy) or _policy(scenario))
        for _ in range(1, scenario.replicas)
    ]
    if scenario.concurrency is None:
        served = run_fleet(replicas, scenario.router, trace.arrival_ns, scenario.seed)
    else:
        served = np.zeros(len(trace), dtype=np.int64)
        for request in range(min(scenario.concurrency, len(trace))):
            issue(engine, replicas[0].state, request, 0)
        run(replicas[0])
    return collect(scenario, replicas, served, trace, profile, source, temperatures)


def _policy(scenario: Scenario) -> Policy:
    return load_policy(scenario.policy, scenario.num_speculative_tokens)


def _believed_profile(belief: Belief, profile: EngineProfile) -> EngineProfile:
    return profile if belief.profile is None else load_profile(belief.profile)


def load_scenario_trace(scenario: Scenario, stored: Trace | None = None) -> Trace:
    """Return the requests of a scenario with its load applied; `stored` is its file, if read."""
    closed = scenario.concurrency is not None
    wanted = scenario.requests
    synthetic = scenario.trace.startswith("synth:")
    if wanted is None and (closed or synthetic):
        wanted = max(1000, 8 * (scenario.concurrency or 0))
    if synthetic:
        trace = load_trace(scenario.trace, wanted, scenario.seed)
    else:
        trace = load_trace(scenario.trace) if stored is None else stored
        if wanted is not None:
            trace = trace.repeated(wanted) if closed else trace.head(wanted)
    if scenario.request_rate is not None:
        trace = trace.with_arrivals("poisson", scenario.request_rate, scenario.seed)
    return trace.scaled(scenario.rate_scale) if scenario.rate_scale != 1.0 else trace
