"""The benchmarks still run: they reach into the kernels, whose signatures change."""

import sys
from pathlib import Path

import pytest

from dspark_sim.simulator import simulate

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import deciding, table
from benchmarks.bare import ready, run_through
from benchmarks.measure import Row
from benchmarks.workloads import LOADS, serving
from dspark_sim.simulator import state as s


@pytest.mark.parametrize("load", LOADS)
def test_the_bare_kernel_takes_the_steps_of_the_whole_call(load):
    scenario = serving(load, "dspark-async", 20)
    replica = ready(scenario)
    run_through(replica)
    assert replica.state.counters[s.C_STEPS] == simulate(scenario).summary["steps"]


def test_a_decision_takes_some_time():
    assert deciding._microseconds("dspark", 2) > 0


def test_rows_are_compared_with_a_baseline_as_ratios(tmp_path):
    rows = [Row("group", "speed", 30.0, "1/s", more=True), Row("group", "new", 1.0, "s")]
    table.write([Row("group", "speed", 20.0, "1/s", more=True)], {}, tmp_path / "baseline.json")
    text = table.markdown(rows, {}, table.read(tmp_path / "baseline.json"))
    assert "1.5" in text
    assert "new" in text
