"""A trace's rules and what its methods keep."""

import doctest
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dspark_sim.trace.synthesis
import dspark_sim.trace.trace
from dspark_sim.core import UserError
from dspark_sim.trace import Trace
from dspark_sim.trace.rules import COLUMNS, MAX_ARRIVAL_S, to_ns


def make(times, prompts=8, outputs=4, **columns):
    frame = pd.DataFrame({"arrival_s": times})
    return Trace(frame.assign(prompt_tokens=prompts, output_tokens=outputs, **columns))


def fault(times, prompts=8, outputs=4, **columns):
    with pytest.raises(UserError) as caught:
        make(times, prompts, outputs, **columns)
    return str(caught.value)


@st.composite
def traces(draw):
    gaps = draw(st.lists(st.integers(0, 10**13), min_size=1, max_size=20))
    lengths = st.lists(st.integers(1, 10**6), min_size=len(gaps), max_size=len(gaps))
    return make(np.cumsum(gaps) / 1e9, draw(lengths), draw(lengths))


def test_columns_and_types_are_fixed_and_defaults_are_filled_in():
    frame = make([0, 1.5], request_id=[7, "x"]).requests
    assert tuple(frame.columns) == COLUMNS
    assert frame["request_id"].tolist() == ["7", "x"]
    assert make([0, 1]).requests["request_id"].tolist() == ["0", "1"]
    assert frame["category"].tolist() == ["", ""]
    assert frame.dtypes[["arrival_s", "prompt_tokens", "output_tokens"]].tolist() == [
        np.float64,
        np.int64,
        np.int64,
    ]


def test_the_given_table_is_copied():
    frame = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]})
    trace = Trace(frame)
    frame.loc[0, "prompt_tokens"] = 99
    assert trace.requests["prompt_tokens"].tolist() == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"times": [0, math.nan]}, ["row 1: arrival_s", "finite", "got nan"]),
        ({"times": [0, math.inf]}, ["row 1: arrival_s", "finite"]),
        ({"times": [-1, 0]}, ["row 0: arrival_s", "negative", "got -1"]),
        ({"times": [0, 2, 1]}, ["row 2: arrival_s", "earlier than the arrival before"]),
        ({"times": [0, 1e9]}, ["row 1: arrival_s", "90 days"]),
        ({"times": [0, 1], "prompts": [1, 0]}, ["row 1: prompt_tokens", "at least 1", "got 0"]),
        ({"times": [0, 1], "outputs": [0, 1]}, ["row 0: output_tokens", "at least 1"]),
        ({"times": [0], "outputs": [1.5]}, ["output_tokens", "whole number", "got 1.5"]),
        ({"times": [0], "outputs": [2**40]}, ["output_tokens", "at most 2147483647"]),
        ({"times": [0], "outputs": ["many"]}, ["output_tokens", "whole number", "got many"]),
        ({"times": [0, 1], "request_id": "a"}, ["row 1: request_id", "unique", "got a"]),
        ({"times": [0], "catgory": "a"}, ["'catgory'", "did you mean 'category'"]),
        ({"times": []}, ["holds no requests"]),
    ],
)
def test_a_broken_rule_is_told_in_one_sentence(arguments, words):
    message = fault(**arguments)
    assert "trace 'trace'" in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_the_earliest_broken_row_is_named():
    assert "row 1" in fault([0, -1, -2], outputs=[1, 1, 0])


def test_a_missing_column_is_named():
    with pytest.raises(UserError, match="lacks the column 'output_tokens'"):
        Trace(pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [1]}))


@settings(deadline=None)
@given(st.integers(0, int(MAX_ARRIVAL_S) * 10**9))
def test_times_are_exact_to_the_nanosecond_for_ninety_days(nanoseconds):
    assert to_ns(np.array([nanoseconds / 1e9]), 10**9).tolist() == [nanoseconds]
    assert to_ns(np.array([nanoseconds / 1e6]), 10**6).tolist() == [nanoseconds]
    assert make([nanoseconds / 1e9]).arrival_ns.tolist() == [nanoseconds]


@settings(deadline=None)
@given(traces(), st.integers(1, 100))
def test_repeating_keeps_order_lengths_and_rate(trace, n):
    longer = trace.repeated(n)
    assert len(longer) == n
    rows = np.arange(n) % len(trace)
    for column in ("prompt_tokens", "output_tokens"):
        assert longer.requests[column].tolist() == trace.requests[column].iloc[rows].tolist()
    if n > len(trace) > 1 and trace.duration_s > 0 and n % len(trace) == 0:
        rounding = (n // len(trace) + 1) * 1e-9 / longer.duration_s  # a lap starts on a whole ns
        assert longer.rate_per_s == pytest.approx(trace.rate_per_s, rel=1e-6 + 2 * rounding)


def test_a_lap_starts_one_mean_gap_after_the_last_and_marks_its_identifiers():
    longer = make([1, 2, 5]).repeated(5)
    assert longer.requests["arrival_s"].tolist() == [1, 2, 5, 7, 8]
    assert longer.requests["request_id"].tolist() == ["0", "1", "2", "0#1", "1#1"]


@settings(deadline=None)
@given(traces(), st.floats(0.5, 100))
def test_scaling_divides_times_and_keeps_the_rest(trace, factor):
    scaled = trace.scaled(factor)
    expected = trace.requests["arrival_s"].to_numpy() / factor
    np.testing.assert_allclose(scaled.requests["arrival_s"], expected, atol=1e-9, rtol=1e-12)
    rest = ["request_id", "prompt_tokens", "output_tokens", "category"]
    pd.testing.assert_frame_equal(scaled.requests[rest], trace.requests[rest])


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_a_rate_scale_must_be_positive_and_finite(factor):
    with pytest.raises(UserError, match="rate scale"):
        make([0]).scaled(factor)


def test_slicing_counts_time_from_its_start():
    part = make([0, 1, 2, 3]).between(0.5, 3)
    assert part.requests["arrival_s"].tolist() == [0.5, 1.5]
    assert part.requests["request_id"].tolist() == ["1", "2"]


def test_an_empty_slice_says_what_the_trace_spans():
    with pytest.raises(UserError, match="no requests from 5 to 6 s, it spans 0 to 3 s"):
        make([0, 3]).between(5, 6)


def test_the_head_is_the_first_requests_and_never_more_than_there_are():
    trace = make([0, 1, 2])
    assert trace.head(2).requests["request_id"].tolist() == ["0", "1"]
    assert trace.head(3) is trace
    for n in (0, 4):
        with pytest.raises(UserError, match=f"has 3 requests, {n} were asked for"):
            trace.head(n)


def test_new_arrivals_keep_the_lengths_and_one_pattern_at_every_rate():
    trace = make(np.zeros(50), prompts=np.arange(1, 51))
    slow, fast = (trace.with_arrivals("gamma", rate, seed=3, cv=2) for rate in (1, 4))
    assert slow.requests["prompt_tokens"].tolist() == list(range(1, 51))
    np.testing.assert_allclose(
        slow.requests["arrival_s"], fast.requests["arrival_s"] * 4, atol=4e-9
    )
    assert not trace.with_arrivals("poisson", math.inf, seed=3).arrival_ns.any()


def test_one_request_or_one_instant_has_no_finite_rate():
    assert math.isnan(make([5]).rate_per_s)
    assert make([5, 5]).rate_per_s == math.inf
    assert make([5]).repeated(3).requests["arrival_s"].tolist() == [5, 5, 5]


def test_the_origin_tells_what_was_done():
    trace = make([0, 1, 2]).scaled(4).head(2).with_category("math")
    assert trace.origin == "rate times 4; first 2 requests; category 'math'"
    assert trace.requests["category"].tolist() == ["math", "math"]


@pytest.mark.parametrize("module", [dspark_sim.trace.trace, dspark_sim.trace.synthesis])
def test_the_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
