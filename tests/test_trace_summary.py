"""A trace in numbers."""

import json

import numpy as np
import pandas as pd
import pytest

from dspark_sim.trace import Trace, summarize, synthesize


def make(times, **columns):
    frame = pd.DataFrame({"arrival_s": times, "prompt_tokens": 10, "output_tokens": 5})
    return Trace(frame.assign(**columns))


def test_counts_rates_and_percentiles_by_hand():
    trace = make([0, 1, 3], prompt_tokens=[10, 20, 90], category=["a", "b", "b"])
    summary = summarize(trace)
    assert summary["num_requests"] == 3
    assert summary["duration_s"] == 3
    assert summary["request_rate_per_s"] == pytest.approx(2 / 3)
    assert summary["total_prompt_tokens"] == 120
    assert summary["total_output_tokens"] == 15
    assert summary["prompt_tokens"] == pytest.approx(
        {"mean": 40, "p50": 20, "p90": 76, "p99": 88.6, "max": 90}
    )
    assert summary["interarrival_cv"] == pytest.approx(np.std([1, 2]) / 1.5)
    assert summary["categories"] == {"b": 2, "a": 1}
    assert list(summary["categories"]) == ["b", "a"]


def test_the_peak_is_the_fullest_minute_wherever_it_starts():
    times = [0, 100, 130, 159, 160, 200]
    summary = summarize(make(times))
    assert summary["peak_rate_per_s"] == 3 / 60
    assert summary["peak_to_mean"] == pytest.approx((3 / 60) / (5 / 200))


def test_what_a_trace_has_not_is_none():
    instant = summarize(make([2, 2]))
    assert instant["request_rate_per_s"] is None
    assert instant["interarrival_cv"] is None
    assert summarize(make([0, 30]))["peak_rate_per_s"] is None
    assert summarize(make([0]))["request_rate_per_s"] is None


def test_the_summary_is_plain_json():
    summary = summarize(synthesize("chat", 500))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
