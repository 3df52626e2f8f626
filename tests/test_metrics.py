import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import make_profile, make_trace

from dspark_sim.acceptance import ParametricAcceptance, load_acceptance
from dspark_sim.config import Scenario
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.simulator.metrics import PERCENTILES, latency_statistics, run_metrics
from dspark_sim.simulator.state import NUM_COUNTERS


def run(trace, source=None, profile=None, **scenario):
    settings = Scenario(**({"profile": "toy", "policy": "none"} | scenario))
    inputs = Inputs(trace, profile or make_profile(), source or load_acceptance("chat-dspark"))
    return simulate(settings, inputs)


def even(rate, draft_len):
    return ParametricAcceptance("even", (rate,) * draft_len, request_sd=0.0, token_sd=0.0)


# A step costs 1 + 0.1 M ms. 0.0: prompt of request 0 (M = 10); 2.0: its second token and the
# prompt of request 1 (M = 1 + 5); 3.6: a token each (M = 2); 4.8: both are done.
@pytest.fixture(scope="module")
def two_requests():
    trace = make_trace([0.0, 0.001], [10, 5], [3, 2])
    return run(trace, profile=make_profile(num_gpus=2), goodput={"ttft": 2.3, "e2el": 4.9})


def test_the_times_of_two_requests_by_hand(two_requests):
    rows = two_requests.requests
    assert rows["admitted_s"].tolist() == [0.0, 0.002]
    assert rows["first_token_s"].tolist() == [0.002, 0.0036]
    assert rows["finish_s"].tolist() == [0.0048, 0.0048]
    assert rows["ttft_ms"].tolist() == pytest.approx([2.0, 2.6])
    assert rows["tpot_ms"].tolist() == pytest.approx([1.4, 1.2])
    assert rows["e2el_ms"].tolist() == pytest.approx([4.8, 3.8])


def test_the_steps_of_two_requests_by_hand(two_requests):
    steps = two_requests.steps
    assert steps["start_ns"].tolist() == [0, 2_000_000, 3_600_000]
    assert steps["step_ns"].tolist() == [2_000_000, 1_600_000, 1_200_000]
    assert steps["num_requests"].tolist() == [0, 1, 2]
    assert steps["prefill_tokens"].tolist() == [10, 5, 0]
    assert steps["batch_tokens"].tolist() == [10, 6, 2]
    assert steps["output_tokens"].tolist() == [1, 2, 2]


BY_HAND = {
    "duration": 0.0048,
    "completed": 2,
    "total_input_tokens": 15,
    "total_output_tokens": 5,
    "request_throughput": 2 / 0.0048,
    "output_throughput": 5 / 0.0048,
    "total_token_throughput": 20 / 0.0048,
    "request_goodput": 1 / 0.0048,
    "mean_ttft_ms": 2.3,
    "median_ttft_ms": 2.3,
    "std_ttft_ms": 0.3,
    "p90_ttft_ms": 2.54,
    "p99_ttft_ms": 2.594,
    "mean_tpot_ms": 1.3,
    "median_tpot_ms": 1.3,
    "mean_e2el_ms": 4.3,
    "p95_e2el_ms": 4.75,
    "mean_itl_ms": (1.6 + 1.2 + 1.2) / 3,
    "median_itl_ms": 1.2,
    "mean_queue_requests": 1.0 / 4.8,
    "mean_system_requests": (4.8 + 3.8) / 4.8,
    "spec_decode_num_drafts": 0,
    "spec_decode_draft_tokens": 0,
    "spec_decode_accepted_tokens": 0,
    "window_s": 0.0048,
    "requests_measured": 2,
    "tok_s_gpu": 5 / 0.0048 / 2,
    "tok_s_user": 1000 / 1.3,
    "tok_s_user_mean": 1000 / 1.3,
    "output_tok_s": 5 / 0.0048,
    "request_s": 2 / 0.0048,
    "acceptance_length": 1.0,
    "verify_budget": 1.0,
    "draft_budget": 0.0,
    "drafted_per_step": 0.0,
    "wasted_tokens": 0,
    "wasted_fraction": 0.0,
    "batch_tokens": 18 / 3,
    "num_requests": 3 / 2,
    "steps": 3,
    "step_ms": 1.6,
    "eager_step_fraction": 0.0,
    "clamped_step_fraction": 0.0,
    "extended_step_fraction": 0.0,
    "prefill_token_fraction": 15 / 18,
    "utilisation": 1.0,
    "mean_running": (1 * 2.0 + 2 * 1.6 + 2 * 1.2) / 4.8,
    "mean_kv_blocks": (1 * 2.0 + 2 * 1.6 + 2 * 1.2) / 4.8,
    "preemptions": 0,
    "ttft_mean_ms": 2.3,
    "tpot_mean_ms": 1.3,
    "icl_mean_ms": (1.6 + 1.2 + 1.2) / 3,
    "e2el_mean_ms": 4.3,
    "ttft_p50_ms": 2.3,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_metric_of_two_requests_by_hand(two_requests, name):
    assert two_requests.summary[name] == pytest.approx(BY_HAND[name], rel=1e-9)


def test_the_whole_run_has_the_keys_of_vllm_bench(two_requests):
    keys = {"duration", "completed", "total_input_tokens", "total_output_tokens"}
    keys |= {"request_throughput", "output_throughput", "total_token_throughput"}
    for metric in ("ttft", "tpot", "itl", "e2el"):
        keys |= {f"{name}_{metric}_ms" for name in ("mean", "median", "std", "p90", "p95", "p99")}
    assert keys <= set(two_requests.summary)


def test_every_metric_of_a_window_says_its_unit_or_is_a_count_or_share(two_requests):
    for metric in ("ttft", "tpot", "icl", "e2el"):
        for key in ("mean", "std", *(f"p{p}" for p in PERCENTILES)):
            assert f"{metric}_{key}_ms" in two_requests.summary


def test_rounds_that_accept_everything_by_hand():
    """Token 1 at admission, then rounds of 4 at 1.4 ms; the second is cut to the last token."""
    trace = make_trace([0.0], [10], [6])
    summary = run(trace, even(1.0, 3), policy="fixed:3", prefill={"mode": "none"}).summary
    assert summary["acceptance_length"] == 4.0  # bonus included, not cut
    assert summary["acceptance_rate"] == 1.0
    assert summary["verify_budget"] == 4.0  # anchor included
    assert summary["draft_budget"] == 3.0
    assert summary["wasted_tokens"] == 0
    assert summary["total_output_tokens"] == 6
    assert summary["output_tok_s"] == pytest.approx(6 / 0.0028)
    assert summary["mean_tpot_ms"] == pytest.approx(2.8 / 5)
    assert summary["mean_itl_ms"] == pytest.approx(1.4)
    assert summary["mean_ttft_ms"] == 0.0


def test_rounds_that_accept_nothing_by_hand():
    trace = make_trace([0.0], [10], [6])
    options = {"policy": "fixed:2,gamma=3", "prefill": {"mode": "none"}}
    summary = run(trace, even(0.0, 3), **options).summary
    assert summary["acceptance_length"] == 1.0
    assert summary["acceptance_rate"] == 0.0
    assert summary["verify_budget"] == 3.0
    assert summary["draft_budget"] == 2.0
    assert summary["drafted_per_step"] == 3.0
    assert summary["wasted_tokens"] == 10
    assert summary["wasted_fraction"] == pytest.approx(2 / 3)


def closed_loop(concurrency, **options):
    rng = np.random.default_rng(2)
    trace = make_trace(np.zeros(40), rng.integers(5, 60, 40), rng.integers(2, 40, 40))
    return run(trace, policy="fixed:3", concurrency=concurrency, **options)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_closed_loop_is_measured_from_its_cth_completion_to_its_last_issue(concurrency):
    result = closed_loop(concurrency)
    rows, steps, summary = result.requests, result.steps, result.summary
    opens = np.sort(rows["finish_s"])[concurrency - 1]
    closes = rows["arrival_s"].max()
    assert summary["window"] == "trimmed"
    assert summary["window_s"] == pytest.approx(closes - opens)
    inside = rows[(rows["finish_s"] > opens + 1e-12) & (rows["finish_s"] <= closes + 1e-12)]
    assert summary["requests_measured"] == len(inside)
    assert summary["request_s"] == pytest.approx(len(inside) / (closes - opens))
    assert summary["ttft_mean_ms"] == pytest.approx(inside["ttft_ms"].mean())
    assert summary["e2el_p90_ms"] == pytest.approx(np.percentile(inside["e2el_ms"], 90))
    assert summary["tok_s_user"] == pytest.approx(1000 / np.median(inside["tpot_ms"]))
    ends = (steps["start_ns"] + steps["step_ns"]) / 1e9
    taken = steps[(ends > opens + 1e-12) & (ends <= closes + 1e-12)]
    assert summary["steps"] == len(taken)
    tokens = taken["output_tokens"].sum()
    assert summary["output_tok_s"] == pytest.approx(tokens / (closes - opens))
    assert summary["batch_tokens"] == pytest.approx(taken["batch_tokens"].mean())
    committed = (taken["accepted_tokens"] + taken["num_requests"]).sum()
    rounds = taken["num_requests"].sum()
    assert summary["acceptance_length"] == pytest.approx(committed / rounds)
    assert summary["verify_budget"] == pytest.approx(1 + taken["verify_tokens"].sum() / rounds)
    assert summary["utilisation"] == pytest.approx(1.0)


def test_the_chunks_of_a_window_are_those_emitted_in_it():
    """One request at a time: every decoding step of the window is the gap before a chunk."""
    result = closed_loop(1)
    steps, rows = result.steps, result.requests
    opens, closes = rows["finish_s"].min(), rows["arrival_s"].max()
    ends = (steps["start_ns"] + steps["step_ns"]) / 1e9
    inside = (ends > opens + 1e-12) & (ends <= closes + 1e-12) & (steps["num_requests"] > 0)
    gaps_ms = steps.loc[inside, "step_ns"] / 1e6
    assert result.summary["icl_mean_ms"] == pytest.approx(gaps_ms.mean())
    assert result.summary["icl_std_ms"] == pytest.approx(gaps_ms.std(ddof=0))


def test_vllms_keys_cover_the_whole_run_whatever_the_window():
    result = closed_loop(4)
    rows, summary = result.requests, result.summary
    assert summary["completed"] == 40
    assert summary["mean_ttft_ms"] == pytest.approx(rows["ttft_ms"].mean())
    duration = rows["finish_s"].max()
    assert summary["duration"] == pytest.approx(duration)
    assert summary["output_throughput"] == pytest.approx(rows["output_tokens"].sum() / duration)
    assert result.gaps[:, 1].sum() == rows["steps"].sum()


def test_a_closed_loop_without_a_middle_is_measured_whole():
    summary = closed_loop(40).summary
    assert summary["window"] == "whole"
    assert summary["requests_measured"] == 40
    assert summary["window_s"] == pytest.approx(summary["duration"])


def open_loop(**options):
    rng = np.random.default_rng(4)
    times = np.cumsum(rng.exponential(0.01, 200))
    trace = make_trace(times, rng.integers(1, 30, 200), rng.integers(2, 20, 200))
    return run(trace, policy="fixed:2", **options)


def test_warm_up_and_cool_down_trim_an_open_loop_to_arrivals_between_them():
    result = open_loop(warmup_s=0.3, cooldown_s=0.4)
    rows, summary = result.requests, result.summary
    first, last = rows["arrival_s"].min() + 0.3, rows["arrival_s"].max() - 0.4
    longest_s = result.steps["step_ns"].max() / 1e9
    pause_s = np.diff(rows["arrival_s"]).max()
    assert summary["window"] == "trimmed"
    assert abs(summary["window_s"] - (last - first)) <= 2 * (longest_s + pause_s)
    inside = rows["arrival_s"].between(first, last).sum()
    assert abs(summary["requests_measured"] - inside) <= 4
    assert summary["request_s"] == pytest.approx(inside / (last - first), rel=0.1)


def test_an_open_loop_without_trimming_is_measured_from_its_first_arrival():
    result = open_loop()
    rows, summary = result.requests, result.summary
    assert summary["window"] == "whole"
    duration = rows["finish_s"].max() - rows["arrival_s"].min()
    assert summary["window_s"] == pytest.approx(duration)
    assert summary["duration"] == pytest.approx(duration)
    busy = result.steps["step_ns"].sum() / 1e9
    assert summary["utilisation"] == pytest.approx(busy / duration)
    assert summary["utilisation"] < 1.0


def test_goodput_counts_requests_that_meet_every_objective():
    limits = {"ttft": 6.0, "tpot": 1.5, "e2el": 20.0}
    result = open_loop(goodput=limits)
    rows = result.requests
    met = np.ones(len(rows), dtype=bool)
    for name, limit in limits.items():
        met &= rows[f"{name}_ms"].fillna(0.0) <= limit
    assert 0 < met.sum() < len(rows)
    expected = met.sum() / result.summary["duration"]
    assert result.summary["request_goodput"] == pytest.approx(expected)


def test_a_single_token_meets_any_objective_for_tpot_as_in_vllm():
    result = run(make_trace([0.0], [10], [1]), goodput={"tpot": 0.001})
    assert result.summary["request_goodput"] == pytest.approx(1 / 0.002)


def test_goodput_without_objectives_is_absent():
    assert open_loop().summary["request_goodput"] is None


def frame(n):
    times = np.arange(n, dtype=float)
    return pd.DataFrame(
        {
            "arrival_s": times, "admitted_s": times, "first_token_s": times, "finish_s": times + 1,
            "prompt_tokens": 1, "output_tokens": 2, "ttft_ms": 0.0, "tpot_ms": 1.0, "e2el_ms": 1.0,
        }
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 30)), min_size=1, max_size=30))
def test_statistics_of_grouped_gaps_are_those_of_the_single_ones(rows):
    """By the method that all latencies, and vLLM, use: numpy's default percentile."""
    gaps = np.array(rows, dtype=np.int64)
    single_ms = np.repeat(gaps[:, 0], gaps[:, 1]) / 1e6
    latencies = latency_statistics(frame(2), gaps)
    summary = run_metrics(np.zeros(NUM_COUNTERS, dtype=np.int64), frame(2), latencies, {})
    assert summary["mean_itl_ms"] == pytest.approx(single_ms.mean(), rel=1e-9)
    assert summary["std_itl_ms"] == pytest.approx(single_ms.std(), rel=1e-6, abs=1e-9)
    assert summary["median_itl_ms"] == pytest.approx(np.percentile(single_ms, 50), rel=1e-9)
    for p in (90, 95, 99):
        expected = np.percentile(single_ms, p)
        assert summary[f"p{p}_itl_ms"] == pytest.approx(expected, rel=1e-9)


def test_what_does_not_exist_is_nan_and_null_in_json(tmp_path):
    result = run(make_trace([0.0, 0.0], [4, 4], [1, 1]))
    for name in ("tpot_mean_ms", "tok_s_user", "mean_itl_ms", "p99_itl_ms", "acceptance_length"):
        assert math.isnan(result.summary[name])
    result.save(tmp_path / "run")

    def refuse(word):
        raise AssertionError(word)

    text = (tmp_path / "run" / "summary.json").read_text(encoding="utf-8")
    summary = json.loads(text, parse_constant=refuse)
    assert summary["tpot_mean_ms"] is None
    assert summary["tok_s_user"] is None
    assert summary["completed"] == 2


def test_no_token_of_any_mode_is_lost_from_the_rate():
    trace = make_trace([0.0] * 6, [4] * 6, [1, 2, 3, 4, 5, 6])
    for mode in ("chunked", "separate", "none"):
        summary = run(trace, policy="fixed:2", prefill={"mode": mode}).summary
        assert summary["output_tok_s"] * summary["window_s"] == pytest.approx(21)
        assert summary["output_tok_s"] == pytest.approx(summary["output_throughput"])
