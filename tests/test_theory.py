"""Closed forms of queueing theory and of acceptance, inside confidence intervals over seeds."""

from math import sqrt

import numpy as np
import pytest
from scenarios import make_profile, make_trace
from scipy import stats

from dspark_sim.acceptance import ParametricAcceptance, geometric
from dspark_sim.config import Scenario
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.throughput import load_profile

SEEDS = range(100, 124)
CONFIDENCE = 0.999


def run(trace, profile, source=None, **scenario):
    settings = Scenario(**({"profile": profile.name, "policy": "none"} | scenario))
    return simulate(settings, Inputs(trace, profile, source or geometric(2.0, 7)))


def assert_mean(samples, expected, width):
    """Check that the mean of independent samples is as expected, and the check a sharp one."""
    low, high = stats.t.interval(CONFIDENCE, len(samples) - 1, np.mean(samples), stats.sem(samples))
    assert low <= expected <= high
    assert (high - low) / 2 < width * expected


def mean_wait_s(outputs, utilisation, service_s, seed, **scenario):
    """Mean wait for a server of one slot under Poisson arrivals, its start-up left out."""
    n = len(outputs)
    trace = make_trace(np.zeros(n), np.full(n, 10), outputs)
    trace = trace.with_arrivals("poisson", utilisation / service_s, seed)
    rows = run(trace, make_profile(max_num_seqs=1), **scenario).requests
    return (rows["admitted_s"] - rows["arrival_s"])[n // 10 :].mean()


@pytest.mark.parametrize(
    ("mode", "service_ms", "utilisation"),
    [("none", 3 * 1.1, 0.7), ("chunked", 2.0 + 3 * 1.1, 0.4)],  # 10 prompt tokens, then 3 steps
)
def test_the_wait_of_m_d_1(mode, service_ms, utilisation):
    service_s = service_ms / 1000
    waits = [
        mean_wait_s(np.full(3000, 4), utilisation, service_s, seed, prefill={"mode": mode})
        for seed in SEEDS
    ]
    expected = utilisation * service_s / (2 * (1 - utilisation))
    assert_mean(waits, expected, width=0.12)


def test_the_wait_of_m_g_1_is_pollaczek_and_khinchine():
    lengths, weights = np.array([2, 5, 17]), np.array([0.5, 0.3, 0.2])
    service_s = (lengths - 1) * 1.1e-3
    mean, square = weights @ service_s, weights @ service_s**2
    utilisation = 0.5
    waits = []
    for seed in SEEDS:
        outputs = np.random.default_rng(seed).choice(lengths, 4000, p=weights)
        wait = mean_wait_s(outputs, utilisation, mean, seed, prefill={"mode": "none"})
        waits.append(wait)
    expected = utilisation / mean * square / (2 * (1 - utilisation))
    assert_mean(waits, expected, width=0.12)


@pytest.mark.parametrize("interval_us", [1000, 3300, 5000])
def test_the_wait_of_d_d_1_is_exact(interval_us):
    """Service takes 3.3 ms; a shorter interval makes each wait longer by the difference."""
    trace = make_trace(np.arange(50) * interval_us / 1e6, [10] * 50, [4] * 50)
    rows = run(trace, make_profile(max_num_seqs=1), prefill={"mode": "none"}).requests
    wait_ns = np.rint((rows["admitted_s"] - rows["arrival_s"]) * 1e9).astype(int)
    late_ns = max(0, 3_300_000 - interval_us * 1000)
    assert wait_ns.tolist() == [i * late_ns for i in range(50)]


def even(rate, draft_len):
    """Every draft token is accepted with the same probability, whatever the request."""
    return ParametricAcceptance("even", (rate,) * draft_len, request_sd=0.0, token_sd=0.0)


def geometric_moments(rate, k):
    """Mean and central moments 2 and 4 of tokens per round: accepted of k, plus the bonus."""
    tokens = np.arange(1, k + 2)
    odds = np.array([rate ** (n - 1) * (1 - rate) for n in range(1, k + 1)] + [rate**k])
    mean = (1 - rate ** (k + 1)) / (1 - rate)
    return mean, odds @ (tokens - mean) ** 2, odds @ (tokens - mean) ** 4


@pytest.mark.parametrize(("rate", "k"), [(0.3, 1), (0.6, 3), (0.8, 5), (0.95, 7)])
def test_acceptance_length_and_its_variance_are_the_geometric_ones(rate, k):
    trace = make_trace([0.0], [10], [60_000])
    result = run(trace, make_profile(), even(rate, k), policy=f"fixed:{k}", seed=5)
    tokens = 1 + result.steps["accepted_tokens"].to_numpy()[1:]
    mean, variance, fourth = geometric_moments(rate, k)
    quantile, n = stats.norm.ppf(0.5 + CONFIDENCE / 2), len(tokens)
    assert abs(tokens.mean() - mean) < quantile * sqrt(variance / n)
    assert abs(tokens.var() - variance) < quantile * sqrt((fourth - variance**2) / n)
    assert result.summary["acceptance_length"] == pytest.approx(tokens.mean(), rel=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_batch_accepts_as_much_as_the_closed_form_says(k):
    """Over many requests that differ in nothing but their luck, under load."""
    lengths = []
    for seed in SEEDS:
        trace = make_trace(np.zeros(60), [10] * 60, [200] * 60)
        result = run(
            trace, make_profile(), even(0.7, k), policy=f"fixed:{k}", concurrency=12, seed=seed
        )
        lengths.append(result.summary["acceptance_length"])
    assert_mean(lengths, (1 - 0.7 ** (k + 1)) / 0.3, width=0.02)


def poisson_run(seed, rate_per_s=25.0, n=800):
    rng = np.random.default_rng(seed)
    trace = make_trace(np.zeros(n), rng.integers(1, 40, n), rng.integers(1, 60, n))
    trace = trace.with_arrivals("poisson", rate_per_s, seed)
    profile = make_profile(max_num_seqs=8, max_num_batched_tokens=64)
    return run(trace, profile, policy="fixed:3", seed=seed)


def time_average(starts, ends):
    """Return the mean number present from the first start to the last end, event by event."""
    moments = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.argsort(moments, kind="stable")
    present = np.cumsum(change[order])[:-1]
    spans = np.diff(moments[order])
    return float(present @ spans / spans.sum())


def test_littles_law_is_an_identity_of_the_records():
    result = poisson_run(1)
    rows, summary = result.requests, result.summary
    rate = summary["request_throughput"]
    present = time_average(rows["arrival_s"], rows["finish_s"])
    assert summary["mean_system_requests"] == pytest.approx(present, rel=1e-9)
    assert present == pytest.approx(rate * summary["mean_e2el_ms"] / 1000, rel=1e-9)
    waits = rows["admitted_s"] - rows["arrival_s"]
    assert summary["mean_queue_requests"] == pytest.approx(rate * waits.mean(), rel=1e-9)
    busy = (result.steps["num_waiting"] * result.steps["step_ns"]).sum() / 1e9
    assert busy <= waits.sum()  # an arrival during a step is counted from the next one on


def test_littles_law_holds_for_the_rate_that_was_offered():
    ratios = []
    for seed in SEEDS[:12]:
        summary = poisson_run(seed).summary
        ratios.append(summary["mean_system_requests"] / (25.0 * summary["mean_e2el_ms"] / 1000))
    assert_mean(ratios, 1.0, width=0.05)


B300_MS = {1: 5.109, 2: 5.162, 4: 5.119, 8: 5.345}  # published, by batch tokens
B300_DRAFT_MS = 0.883  # published, one request


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_tpot_of_a_single_request_is_draft_plus_verify(k, rate):
    profile = load_profile("dsv4-flash-b300-tp4")
    steps = 5
    outputs = 1 + steps * (1 + k if rate else 1)
    result = run(
        make_trace([0.0], [100], [outputs]),
        profile,
        even(rate, k),
        policy=f"fixed:{k}",
        prefill={"mode": "none"},
    )
    step_ms = B300_DRAFT_MS + B300_MS[1 + k]
    tpot_ms = step_ms / (1 + k) if rate else step_ms
    assert result.summary["mean_tpot_ms"] == pytest.approx(tpot_ms, rel=1e-9)
    assert result.summary["tok_s_user"] == pytest.approx(1000 / tpot_ms, rel=1e-9)
    assert result.summary["mean_itl_ms"] == pytest.approx(step_ms, rel=1e-9)
    assert result.summary["steps"] == steps


def test_the_tpot_without_speculation_is_one_verify():
    profile = load_profile("dsv4-flash-b300-tp4")
    result = run(make_trace([0.0], [100], [30]), profile, prefill={"mode": "none"})
    assert result.summary["mean_tpot_ms"] == pytest.approx(B300_MS[1], rel=1e-9)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_a_closed_loop_of_equal_steps_has_its_throughput_by_hand(concurrency):
    """c requests in lockstep: 20 tokens each in 19 steps of 1 + 0.1 c ms."""
    trace = make_trace(np.zeros(8 * concurrency), [10] * 8 * concurrency, [20] * 8 * concurrency)
    result = run(trace, make_profile(), concurrency=concurrency, prefill={"mode": "none"})
    step_s = (1 + 0.1 * concurrency) / 1000
    expected = concurrency * 20 / (19 * step_s)
    assert result.summary["window"] == "trimmed"
    assert result.summary["output_tok_s"] == pytest.approx(expected, rel=1e-9)
    assert result.summary["num_requests"] == concurrency
    assert result.summary["utilisation"] == 1.0


def test_the_best_fixed_length_by_hand_is_the_best_in_a_run():
    """Argmax over k of E[tokens] / T(c (1 + k)), for even acceptance on a straight line."""
    rate, concurrency = 0.7, 4
    lengths = [1, 2, 3, 4, 5, 6, 7]
    by_hand = [
        concurrency * (1 - rate ** (k + 1)) / (1 - rate) / (1 + 0.1 * concurrency * (1 + k)) * 1000
        for k in lengths
    ]
    measured = []
    for k in lengths:
        trace = make_trace(np.zeros(200), [10] * 200, [400] * 200)
        options = {"policy": f"fixed:{k}", "concurrency": concurrency, "prefill": {"mode": "none"}}
        measured.append(run(trace, make_profile(), even(rate, k), **options).summary)
    rates = [m["output_tok_s"] for m in measured]
    assert np.argmax(rates) == np.argmax(by_hand)
    assert rates == pytest.approx(by_hand, rel=0.02)
