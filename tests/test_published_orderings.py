"""What the published B300 cost table and the paper's chat law must show together."""

import pytest

from dspark_sim import Scenario, simulate
from dspark_sim.study import sweep

FIXED = ["fixed:1", "fixed:3", "fixed:5", "fixed:7"]
SCHEDULED = ["dspark-async", "vllm"]
LOADS = [1, 2, 4, 16, 64, 128, 256]


@pytest.fixture(scope="module")
def throughput():
    scenario = Scenario(profile="dsv4-flash-b300-tp4", prefill={"mode": "none"})
    runs = sweep(scenario, ["none", *FIXED, *SCHEDULED, "oracle"], LOADS)
    return runs.pivot_table(index="policy", columns="concurrency", values="tok_s_gpu"), runs


def test_scheduled_policies_are_within_two_percent_of_the_best_fixed_length(throughput):
    table, _ = throughput
    for policy in SCHEDULED:
        assert (table.loc[policy] >= 0.98 * table.loc[FIXED].max()).all(), table


def test_the_longest_draft_is_best_at_low_load_and_collapses_outside_the_captured_region(
    throughput,
):
    table, runs = throughput
    assert (table.loc[FIXED, [1, 2, 4]].idxmax() == "fixed:7").all()
    assert table.loc["fixed:7", 256] < table.loc["fixed:3", 256] / 2.5
    eager = runs.pivot_table(index="policy", columns="concurrency", values="eager_step_fraction")
    assert eager.loc["fixed:7", 256] > 0.99
    assert eager.loc["vllm", 256] < 0.01


def test_nothing_beats_the_oracle(throughput):
    table, _ = throughput
    assert (table.drop("oracle").max() <= table.loc["oracle"]).all(), table


def gain(profile, concurrency, policy, rival, **keys):
    """Return how much faster a policy is than another on the same luck, as a ratio."""
    shared = {"profile": profile, "concurrency": concurrency, "prefill": {"mode": "none"}}
    runs = [
        simulate(Scenario(**shared | {"requests": 400, "record": "summary"} | keys, policy=name))
        for name in (policy, rival)
    ]
    return runs[0].summary["tok_s_gpu"] / runs[1].summary["tok_s_gpu"]


def test_sglang_without_a_table_verifies_everything():
    flat = {"belief": {"table": "flat"}}
    assert gain("llama3.1-8b-h100", 64, "sglang", "fixed:7", **flat) == pytest.approx(1.0, abs=1e-3)


def test_on_a_mixture_of_experts_a_dense_models_table_is_worse_than_verifying_everything():
    small = "qwen3.5-35b-a3b-h20"
    wrong = {"belief": {"profile": "qwen3-8b-h20"}}
    assert gain(small, 48, "dspark-async", "fixed:7", **wrong) < 0.95
    assert gain(small, 48, "dspark-async", "fixed:7") > 1.03


@pytest.mark.parametrize("concurrency", [48, 64])
def test_on_a_dense_model_trimming_gains_about_a_tenth_at_moderate_load(concurrency):
    assert 1.07 < gain("llama3.1-8b-h100", concurrency, "dspark-async", "fixed:7") < 1.25


def test_a_fresh_request_that_counts_as_sure_costs_short_outputs_most():
    lost = [
        1 - gain("qwen3-8b-h20", 64, "dspark-async", "dspark-async:lag=0",
                 trace=f"synth:fixed,in=64,out={tokens}")
        for tokens in (8, 32, 128)
    ]  # fmt: skip
    assert lost[0] > 0.08
    assert lost[0] > 5 * max(lost[1:])
