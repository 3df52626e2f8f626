"""A replica that is ready to run, for timing its kernels without SimPy, records and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance import load_acceptance
from dspark_sim.policies import load_policy, policy_draft_len
from dspark_sim.simulator import state as s
from dspark_sim.simulator.admission import issue, issue_all
from dspark_sim.simulator.engine import Replica
from dspark_sim.simulator.kernels import advance
from dspark_sim.simulator.setup import build_engine, build_rule
from dspark_sim.simulator.simulate import load_scenario_trace
from dspark_sim.throughput import load_profile

if TYPE_CHECKING:
    from dspark_sim.config import Scenario


def ready(scenario: Scenario) -> Replica:
    """Return the replica of a scenario before its first step, with room for all its records."""
    profile = load_profile(scenario.profile, scenario.profile_set)
    trace = load_scenario_trace(scenario)
    policy = load_policy(scenario.policy, scenario.num_speculative_tokens)
    gamma = policy_draft_len(policy, scenario.num_speculative_tokens)
    engine = build_engine(scenario, profile, gamma, trace)
    lengths = trace.requests[["prompt_tokens", "output_tokens"]].to_numpy(np.int64).T
    state = s.new_state(engine, *lengths, scenario.prefill.workers)
    room = np.zeros((int(lengths[1].sum()) + len(state.gaps), 2), dtype=np.int64)
    state = state._replace(gaps=room)
    if scenario.concurrency is None:
        issue_all(engine, state, np.arange(len(trace)), trace.arrival_ns)
    else:
        for request in range(min(scenario.concurrency, len(trace))):
            issue(engine, state, request, 0)
    rule = build_rule(policy, scenario.belief, profile, engine, scenario.extend)
    categories = trace.requests["category"].tolist()
    acceptance = load_acceptance(scenario.acceptance, gamma).tables(categories, gamma)
    return Replica(engine, acceptance, rule, policy, state, profile.name, scenario.policy)


def run_through(replica: Replica) -> None:
    """Take all steps in one call of the kernel."""
    status = advance(replica.engine, replica.acceptance, replica.rule, replica.state, s.NEVER)
    if status != s.DONE:
        raise RuntimeError(f"the kernel stopped with status {status}")
