"""Synthetic traces follow the laws they name."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.trace import Trace, summarize, synthesize
from dspark_sim.trace.synthesis import KINDS

LENGTHS = ["prompt_tokens", "output_tokens"]
ANY = {"fixed": {"input_tokens": 8, "output_tokens": 4}}
ANY["lognormal"] = {**ANY["fixed"], "input_sigma": 1, "output_sigma": 1}


def source():
    frame = pd.DataFrame({"arrival_s": [0, 2, 4], "prompt_tokens": [10, 20, 30]})
    return Trace(frame.assign(output_tokens=[1, 2, 3], category=["a", "b", "c"]), name="src")


def median_interval(draws, z=3.5):
    """Bounds of the median at about 99.95 %, from order statistics."""
    ordered, n = np.sort(draws), len(draws)
    half = z * math.sqrt(n) / 2
    return ordered[int(n / 2 - half)], ordered[int(n / 2 + half)]


@pytest.mark.parametrize(
    ("kind", "prompt", "output", "category"),
    [("chat", 1020, 129, "chat"), ("code", 1469, 13, "code"), ("reasoning", 128, 4000, "math")],
)
def test_presets_have_the_medians_and_categories_they_name(kind, prompt, output, category):
    frame = synthesize(kind, 10_000, seed=5).requests
    for column, expected in (("prompt_tokens", prompt), ("output_tokens", output)):
        low, high = median_interval(frame[column].to_numpy())
        assert low <= expected <= high
    assert set(frame["category"]) == {category}


@pytest.mark.parametrize(
    ("kind", "prompt_p90", "output_p90"), [("chat", 2734.5, 424), ("code", 5187.6, 55)]
)
def test_chat_and_code_have_the_90th_percentiles_of_azures_traces(kind, prompt_p90, output_p90):
    summary = summarize(synthesize(kind, 50_000, seed=5))
    assert summary["prompt_tokens"]["p90"] == pytest.approx(prompt_p90, rel=0.03)
    assert summary["output_tokens"]["p90"] == pytest.approx(output_p90, rel=0.03)


def test_lognormal_lengths_have_the_given_median_sigma_and_maximum():
    given_lengths = {"input_tokens": 5000, "output_tokens": 800}
    sigmas = {"input_sigma": 0.5, "output_sigma": 0.0}
    frame = synthesize("lognormal", 20_000, seed=2, **given_lengths, **sigmas).requests
    logs = np.log(frame["prompt_tokens"].to_numpy())
    n = len(logs)
    assert abs(logs.mean() - math.log(5000)) < 4 * 0.5 / math.sqrt(n)
    assert abs(logs.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * n)
    assert set(frame["output_tokens"]) == {800}
    cut = synthesize("lognormal", 1000, seed=2, **given_lengths, **sigmas, input_max=6000)
    assert cut.requests["prompt_tokens"].max() == 6000


def test_fixed_lengths_are_fixed():
    frame = synthesize("fixed", 5, input_tokens=512, output_tokens=256).requests
    assert frame[LENGTHS].drop_duplicates().to_numpy().tolist() == [[512, 256]]


def test_empirical_draws_whole_rows_at_the_rate_of_their_trace():
    trace = synthesize("empirical", 3000, seed=1, source=source())
    rows = trace.requests[[*LENGTHS, "category"]].value_counts()
    assert set(rows.index) == {(10, 1, "a"), (20, 2, "b"), (30, 3, "c")}
    assert abs(rows.to_numpy() - 1000).max() < 4 * math.sqrt(3000 * 2 / 9)
    assert trace.rate_per_s == pytest.approx(0.5, rel=4 / math.sqrt(3000))


@pytest.mark.parametrize(
    ("process", "cv", "expected"), [("poisson", None, 1), ("gamma", 2, 2), ("gamma", 0.5, 0.5)]
)
def test_arrivals_have_the_given_rate_and_burstiness(process, cv, expected):
    trace = synthesize("chat", 50_000, seed=4, rate_per_s=7, process=process, cv=cv)
    gaps = np.diff(trace.requests["arrival_s"].to_numpy())
    assert abs(gaps.mean() * 7 - 1) < 4 * expected / math.sqrt(len(gaps))
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05)


def test_constant_arrivals_are_evenly_spaced():
    trace = synthesize("chat", 5, rate_per_s=4, process="constant")
    assert trace.requests["arrival_s"].tolist() == [0, 0.25, 0.5, 0.75, 1]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["chat", "fixed", "lognormal"]))
def test_lengths_do_not_depend_on_the_arrivals(seed, kind):
    first = synthesize(kind, 20, seed, **ANY.get(kind, {}))
    for other in (
        synthesize(kind, 20, seed, process="gamma", cv=3, **ANY.get(kind, {})),
        synthesize(kind, 20, seed, rate_per_s=math.inf, **ANY.get(kind, {})),
    ):
        pd.testing.assert_frame_equal(first.requests[LENGTHS], other.requests[LENGTHS])


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from(["chat", "empirical"]))
def test_more_requests_extend_fewer_and_the_seed_decides_all(seed, n, kind):
    given_source = source() if kind == "empirical" else None
    short, long = (synthesize(kind, k, seed, source=given_source) for k in (n, 60))
    pd.testing.assert_frame_equal(short.requests, long.requests[:n])


def test_another_seed_gives_other_requests():
    one, two = (synthesize("chat", 20, seed).requests for seed in (1, 2))
    assert one["prompt_tokens"].tolist() != two["prompt_tokens"].tolist()
    assert one["arrival_s"].tolist() != two["arrival_s"].tolist()


def test_the_category_can_be_given_and_the_origin_tells_all():
    trace = synthesize("fixed", 2, 9, category="math", input_tokens=512, output_tokens=256)
    assert set(trace.requests["category"]) == {"math"}
    assert trace.origin == (
        "synthetic fixed: 2 requests, prompts of 512, outputs of 256, category 'math', poisson "
        "arrivals at 1/s, seed 9"
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("chta", {}, "did you mean 'chat'"),
        ("chat", {"num_requests": 0}, "at least one request, 0"),
        ("chat", {"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ("chat", {"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ("chat", {"process": "poison"}, "did you mean 'poisson'"),
        ("chat", {"rate_per_s": 0}, "rate must be positive"),
        ("chat", {"rate_per_s": math.nan}, "rate must be positive"),
        ("chat", {"process": "gamma"}, "gamma arrivals need cv"),
        ("chat", {"process": "gamma", "cv": 0}, "cv of gamma arrivals must be from 0.01 to 100"),
        ("chat", {"cv": 2}, "cv is for gamma arrivals only, got cv=2 with 'poisson'"),
        ("chat", {"input_tokens": 0}, "input_tokens must be from 1"),
        ("chat", {"input_tokens": math.nan}, "input_tokens must be from 1"),
        ("chat", {"input_sigma": -1}, "input_sigma must be from 0 to 10, got -1"),
        ("chat", {"inptu_sigma": 1}, "did you mean 'input_sigma'"),
        ("chat", {"source": "a trace"}, "from= is for synth:empirical"),
        ("fixed", {}, "needs in= and out=, input_tokens and output_tokens not given"),
        ("fixed", {"input_tokens": 8}, "output_tokens not given"),
        ("fixed", {"input_tokens": 8, "output_tokens": 1.5}, "must be a whole number, got 1.5"),
        ("fixed", {"input_sigma": 1}, "unknown length 'input_sigma' in synth:fixed"),
        ("empirical", {}, "needs from="),
        ("empirical", {"source": "src", "input_tokens": 5}, "takes its lengths from a trace"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(kind, arguments, words):
    if "source" in arguments:
        arguments = arguments | {"source": source()}
    with pytest.raises(UserError) as caught:
        synthesize(kind, **arguments)
    assert words in str(caught.value)


def test_every_kind_says_what_it_is():
    assert all(kind.about for kind in KINDS.values())
