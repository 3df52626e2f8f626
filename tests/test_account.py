import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from scenarios import cases, make_profile, make_trace
from test_simulate import examples

from dspark_sim import Scenario
from dspark_sim.acceptance import ParametricAcceptance
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.simulator.metrics import PARTS
from dspark_sim.throughput.lookup import Curve

ALL = (*PARTS, "idle")
CAPTURED = {
    "lookup": "captured",
    "verify": pd.DataFrame({"batch_tokens": [1, 4, 8, 64], "ms": [1.0, 2.0, 4.0, 32.0]}),
}


def spent(rate, output=101, prompt=10, **profile):
    source = ParametricAcceptance("even", (rate,) * 2, request_sd=0.0, token_sd=0.0)
    trace = make_trace([0.0], [prompt], [output])
    scenario = {"policy": "fixed:2", "prefill": {"mode": "none"}, "profile": "toy"}
    inputs = Inputs(trace, make_profile(**(CAPTURED | profile)), source)
    summary = simulate(Scenario(**scenario), inputs).summary
    steps = summary["steps"] * 1e3 / summary["total_output_tokens"]
    return {part: summary[f"us_token_{part}"] / steps for part in ALL}  # ms per step


@given(cases())
@examples(25)
def test_the_parts_add_up_to_the_time_per_token(case):
    summary = case.run().summary
    if summary["output_tok_s"] == 0.0 or np.isnan(summary["output_tok_s"]):
        return
    parts = [summary[f"us_token_{part}"] for part in ALL]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(summary["us_token"], rel=1e-12)
    assert summary["us_token"] == pytest.approx(1e6 / summary["output_tok_s"], rel=1e-12)


def test_three_tokens_padded_to_four_by_hand():
    """verify[3] is verify[4] = 2 ms; on the line it is 5/3 ms, of which 1 ms is any pass's."""
    parts = spent(0.0)
    assert parts["pass"] == pytest.approx(1.0)
    assert parts["padding"] == pytest.approx(2 - 5 / 3, abs=1e-6)
    assert parts["committed"] == pytest.approx(2 / 9, abs=1e-6)
    assert parts["rejected"] == pytest.approx(4 / 9, abs=1e-6)
    assert parts["draft"] == parts["context"] == parts["overhead"] == parts["idle"] == 0.0


def test_accepted_drafts_are_committed_and_not_rejected():
    parts = spent(1.0)
    assert parts["rejected"] == 0.0
    assert parts["committed"] == pytest.approx(2 / 3, abs=1e-6)


def test_drafting_overhead_and_context_have_parts_of_their_own():
    draft = pd.DataFrame({"num_requests": [1, 64], "draft_len": [1, 1], "ms": [0.3, 0.3]})
    requests = pd.DataFrame({"num_requests": [1, 64], "ms": [0.2, 0.2]})
    parts = spent(
        0.0, draft=draft, requests=requests, overhead_ms=0.5, output=2, prompt=99,
        context_ms_per_kv_token=0.01, draft_context_ms_per_kv_token=0.001,
    )  # fmt: skip
    assert parts["draft"] == pytest.approx(0.3 + 100 * 0.001)
    assert parts["overhead"] == pytest.approx(0.7)
    assert parts["context"] == pytest.approx(1.0)


def test_prompt_tokens_take_their_share_of_a_mixed_step():
    trace = make_trace([0.0, 0.0005], [1, 5], [3, 1])
    scenario = Scenario(profile="toy", policy="none")
    result = simulate(scenario, Inputs(trace, make_profile(**CAPTURED)))
    assert result.steps["batch_tokens"].tolist() == [1, 6, 1]
    spent_us = {part: 4 * result.summary[f"us_token_{part}"] for part in ALL}  # 4 tokens
    # 1 ms of prompt alone; then 6 tokens, 4 ms padded to 8, 3 ms at 6: 1 ms pass, 2 ms shared
    assert spent_us["prefill"] == pytest.approx(1000 + 2000 * 5 / 6)
    assert spent_us["committed"] == pytest.approx(2000 / 6)
    assert spent_us["padding"] == pytest.approx(1000)
    assert spent_us["pass"] == pytest.approx(2000)


def test_padding_is_what_a_captured_size_costs_above_the_line():
    curve = Curve(np.array([2, 4, 8, 20]), np.array([1.0, 3.0, 2.0, 9.0]), "captured", 8)
    assert curve.padding_ms([0, 1, 2, 3, 4]).tolist() == [0, 0, 0, 1.0, 0]
    assert curve.padding_ms([5, 6, 8]).tolist() == [0, 0, 0]  # the larger size is the cheaper
    assert curve.padding_ms([9, 20, 30]).tolist() == [0, 0, 0]  # eager
    for rule in ("linear", "floor"):
        assert not Curve(curve.sizes, curve.ms, rule).padding_ms([3, 5]).any()


def test_waits_name_what_the_first_in_line_lacks():
    trace = make_trace([0.0] * 4, [10] * 4, [50] * 4)
    scenario = Scenario(profile="toy", policy="none", prefill={"mode": "none"})
    slots = simulate(scenario, Inputs(trace, make_profile(max_num_seqs=2))).summary
    cache = simulate(scenario, Inputs(trace, make_profile(kv_tokens=160))).summary
    assert slots["slot_wait_fraction"] > 0.4
    assert slots["kv_wait_fraction"] == 0.0
    assert cache["kv_wait_fraction"] > 0.2
    assert cache["slot_wait_fraction"] == 0.0
