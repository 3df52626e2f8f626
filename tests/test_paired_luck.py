"""The same luck for every policy: differences between policies need few seeds."""

import numpy as np
import pytest

from dspark_sim.acceptance import load_acceptance
from dspark_sim.config import Scenario
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.throughput import load_profile
from dspark_sim.trace import load_trace

SEEDS = 30
PAIRS = (("fixed:3", "fixed:7"), ("fixed:6", "fixed:7"), ("vllm", "dspark-async"))
BASELINES = ("fixed:7", "dspark-async")


@pytest.fixture(scope="module")
def throughput():
    """Return output tokens per second by policy and seed; baselines have 30 seeds more.

    Requests are the same for all seeds: luck alone differs.
    """
    inputs = Inputs(
        trace=load_trace("chat-1k").head(300),
        profile=load_profile("llama3.1-8b-h100"),
        acceptance=load_acceptance("chat-dspark"),
    )

    def run(policy, seed):
        scenario = Scenario(
            profile="llama3.1-8b-h100",
            policy=policy,
            concurrency=16,
            prefill={"mode": "none"},
            seed=seed,
            record="requests",
        )
        return simulate(scenario, inputs).summary["output_tok_s"]

    counts = {policy: SEEDS for pair in PAIRS for policy in pair} | dict.fromkeys(
        BASELINES, 2 * SEEDS
    )
    return {
        policy: np.array([run(policy, seed) for seed in range(count)])
        for policy, count in counts.items()
    }


def standard_errors(throughput, policy, baseline):
    """Return the difference's mean, and its standard error with the same and with other seeds."""
    paired = throughput[policy] - throughput[baseline][:SEEDS]
    independent = throughput[policy] - throughput[baseline][SEEDS:]
    errors = (float(np.std(d, ddof=1)) / np.sqrt(SEEDS) for d in (paired, independent))
    return float(paired.mean()), *errors


def test_the_same_luck_halves_the_error_at_least_and_more_for_closer_policies(throughput):
    lines, factors = [], {}
    for pair in PAIRS:
        mean, paired, independent = standard_errors(throughput, *pair)
        factors[pair] = independent / paired
        lines.append(
            f"{pair[0]} - {pair[1]}: {mean:.1f} tok/s, standard error over {SEEDS} seeds: "
            f"same luck {paired:.2f}, independent luck {independent:.2f}, "
            f"factor {factors[pair]:.1f}"
        )
    table = "\n".join(lines)
    print(f"\n{table}")  # noqa: T201
    assert factors["fixed:3", "fixed:7"] >= 2, table
    assert factors["fixed:6", "fixed:7"] >= 2 * factors["fixed:3", "fixed:7"], table
    assert factors["vllm", "dspark-async"] >= 2 * factors["fixed:3", "fixed:7"], table


def test_paired_and_independent_luck_agree_on_the_mean(throughput):
    for pair in PAIRS:
        mean, paired, independent = standard_errors(throughput, *pair)
        other = (throughput[pair[0]] - throughput[pair[1]][SEEDS:]).mean()
        assert abs(mean - other) < 4 * np.hypot(paired, independent)
