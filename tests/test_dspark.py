import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_steps import SIXTEENTHS, step_view, steps

from dspark_sim.policies import load_policy

# arXiv 2607.05147, Appendix A: SPS(1, 2, 3), a_1, and c_2 after x_1 = A or B.
SPS = (1.0, 0.5, 0.45)
A_1 = 0.8
C_2 = {"A": 0.9, "B": 0.0}
TARGET, DRAFT = np.array([0.7, 0.3]), np.array([0.5, 0.5])


def appendix_a(token):
    return step_view([[A_1, C_2[token]]], [0, *(round(1e9 / sps) for sps in SPS)])


def length(spec, token):
    return int(load_policy(spec).verify_lengths(appendix_a(token))[0])


def output_distribution(spec):
    """P(A), P(B) of the first output, if x_1 is verified iff the rule keeps it, having seen c_2."""
    residual = np.maximum(TARGET - DRAFT, 0.0)
    output = np.zeros(2)
    for token, drafted in enumerate(DRAFT):
        kept = min(1.0, TARGET[token] / drafted)
        verified = kept * np.eye(2)[token] + (1.0 - kept) * residual / residual.sum()
        output += drafted * (verified if length(spec, "AB"[token]) > 0 else TARGET)
    return output.tolist()


@pytest.mark.parametrize("token", ["A", "B"])
def test_appendix_a_algorithm_1_verifies_nothing_in_either_case(token):
    assert length("dspark", token) == 0


@pytest.mark.parametrize("spec", ["dspark-async:lag=0", "vllm:lag=0"])
def test_appendix_a_a_search_without_the_stop_verifies_2_or_0(spec):
    assert [length(spec, token) for token in "AB"] == [2, 0]


def test_appendix_a_the_stop_keeps_the_targets_distribution():
    assert output_distribution("dspark") == pytest.approx([0.7, 0.3])


def test_appendix_a_a_live_search_without_the_stop_distorts_it():
    assert output_distribution("vllm:lag=0") == pytest.approx([0.85, 0.15])


def test_appendix_a_a_stale_budget_keeps_the_targets_distribution():
    assert output_distribution("dspark-async") == pytest.approx([0.7, 0.3])


def throughput(view, lengths):
    """Θ of an allocation: expected tokens over the step's time."""
    survival = view.survival
    gain = sum(survival[r, :kept].sum() for r, kept in enumerate(lengths))
    batch = view.num_requests + view.prefill_tokens + sum(lengths)
    return (view.num_requests + gain) * view.cost.steps_per_second(batch)


def best_throughput(view):
    """Largest Θ over all allocations that respect prefixes."""
    every = itertools.product(*[range(drafted + 1) for drafted in view.draft_len.tolist()])
    return max(throughput(view, lengths) for lengths in every)


@st.composite
def unimodal_steps(draw):
    """A step whose Θ rises to one peak along the greedy path and falls after it."""
    num, gamma = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    block = st.lists(SIXTEENTHS, min_size=gamma, max_size=gamma)
    confidence = draw(st.lists(block, min_size=num, max_size=num))
    view = step_view(confidence, [1])
    tau = num + np.concatenate(([0.0], np.cumsum(-np.sort(-view.survival, axis=None))))
    peak = draw(st.integers(0, len(tau) - 1))
    factors = draw(st.lists(st.floats(1.01, 2.0), min_size=len(tau), max_size=len(tau)))
    rises = np.where(np.arange(len(tau)) <= peak, factors, 1 / np.array(factors))
    costs = np.rint(1e12 * tau / np.cumprod(rises)).astype(np.int64)
    return step_view(confidence, [-1] * num + costs.tolist())


@given(unimodal_steps())
def test_algorithm_1_equals_brute_force_where_throughput_has_one_peak(view):
    lengths = load_policy("dspark").verify_lengths(view).tolist()
    assert throughput(view, lengths) == pytest.approx(best_throughput(view), rel=1e-9)


@st.composite
def convex_steps(draw):
    """A step whose cost rises ever faster: expected tokens over it always has one peak."""
    num, gamma = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    block = st.lists(st.floats(0.0, 1.0), min_size=gamma, max_size=gamma)
    slopes = draw(st.lists(st.integers(0, 1_000), min_size=num * gamma, max_size=num * gamma))
    costs = draw(st.integers(1, 5_000)) + np.cumsum([0, *sorted(slopes)])
    return step_view(
        draw(st.lists(block, min_size=num, max_size=num)),
        [-1] * num + costs.tolist(),
        fixed_ns=draw(st.integers(0, 500)),
    )


@given(convex_steps())
def test_algorithm_1_equals_brute_force_where_cost_is_convex(view):
    lengths = load_policy("dspark").verify_lengths(view).tolist()
    assert throughput(view, lengths) == pytest.approx(best_throughput(view), rel=1e-9)


@given(steps(), st.data())
def test_algorithm_1_never_looks_ahead_of_the_token_it_admits(view, data):
    """Whether a token is kept is known once its own confidence is: what follows it is not read."""
    request = data.draw(st.integers(0, view.num_requests - 1))
    position = data.draw(st.integers(0, view.max_draft_len - 1))
    others = view.confidence.copy()
    drafted = int(view.draft_len[request])
    for j in range(position + 1, drafted):
        others[request, j] = data.draw(SIXTEENTHS)
    rule = load_policy("dspark").verify_lengths
    known = [
        min(int(rule(seen)[request]), position + 1)
        for seen in (view, dataclasses.replace(view, confidence=others))
    ]
    assert known[0] == known[1]


@pytest.mark.parametrize("spec", ["dspark-async", "vllm"])
@given(view=steps(), data=st.data())
def test_a_stale_budget_does_not_depend_on_live_confidences(spec, view, data):
    others = [[data.draw(SIXTEENTHS) for _ in row] for row in view.confidence]
    rule = load_policy(spec).verify_lengths
    elsewhere = dataclasses.replace(view, confidence=np.array(others))
    assert rule(view).sum() == rule(elsewhere).sum()


def test_without_a_lag_the_asynchronous_form_is_the_global_search_on_live_survival():
    view = step_view([[0.9, 0.9, 0.5]], [0, 10, 20, 21, 22], history=np.zeros((1, 3, 3)))
    assert load_policy("dspark-async:lag=0").verify_lengths(view).tolist() == [3]
    assert load_policy("dspark-async").verify_lengths(view).tolist() == [0]
    assert load_policy("dspark").verify_lengths(view).tolist() == [0]
