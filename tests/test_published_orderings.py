"""What the published B300 cost table and the paper's chat law must show together."""

import pytest

from dspark_sim import Scenario
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
