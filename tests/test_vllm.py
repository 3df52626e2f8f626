import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_steps import CONFIDENCE, step_view

from dspark_sim.policies import load_policy


def staircase(num_tokens, sizes, cost_by_size):
    """Cost of a batch: that of the next captured size."""
    tokens = np.arange(num_tokens + 1)
    return np.asarray(cost_by_size)[np.searchsorted(sizes, tokens)].tolist()


def throughput(view, lengths):
    gain = sum(view.survival[r, :kept].sum() for r, kept in enumerate(lengths))
    return (view.num_requests + gain) * view.cost.steps_per_second(view.num_requests + sum(lengths))


def brute_force(view):
    every = itertools.product(*[range(drafted + 1) for drafted in view.draft_len.tolist()])
    return max(throughput(view, lengths) for lengths in every)


@st.composite
def staircase_steps(draw):
    num, gamma = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    block = st.lists(CONFIDENCE, min_size=gamma, max_size=gamma)
    top = num * (1 + gamma)
    sizes = sorted({*draw(st.lists(st.integers(1, top), max_size=4)), top})
    rises = draw(st.lists(st.integers(0, 50), min_size=len(sizes), max_size=len(sizes)))
    costs = draw(st.integers(1, 50)) + np.cumsum(rises)
    return step_view(
        draw(st.lists(block, min_size=num, max_size=num)), staircase(top, sizes, costs)
    )


@given(staircase_steps())
def test_on_a_staircase_vllm_finds_the_global_maximum(view):
    lengths = load_policy("vllm:lag=0").verify_lengths(view).tolist()
    assert throughput(view, lengths) == pytest.approx(brute_force(view), rel=1e-12)


def test_on_a_staircase_algorithm_1_may_stop_at_a_riser_that_was_worth_climbing():
    # Sizes 2 and 4: one more token costs the whole riser, the second comes free with it.
    view = step_view([[0.7], [0.7]], staircase(4, [2, 4], [100, 136]))
    vllm = load_policy("vllm:lag=0").verify_lengths(view).tolist()
    dspark = load_policy("dspark").verify_lengths(view).tolist()
    assert (dspark, vllm) == ([0, 0], [1, 1])
    assert throughput(view, vllm) == brute_force(view) > 1.2 * throughput(view, dspark)


def test_every_place_up_to_the_next_captured_size_is_free_and_filled():
    view = step_view([[0.3] * 3, [0.2] * 3], staircase(8, [4, 8], [100, 300]))
    assert load_policy("vllm:lag=0").verify_lengths(view).sum() == 2


def test_the_fewest_tokens_win_a_tie():
    # 1 / 10 = (1 + 0.5) / 15 = (1 + 0.5 + 0.5) / 20.
    view = step_view([[0.5, 1.0]], [0, 10, 15, 20])
    assert load_policy("vllm:lag=0").verify_lengths(view).tolist() == [0]


def test_hopeless_tokens_are_not_used_to_fill_a_captured_size():
    view = step_view([[0.5, 0.0, 0.5]], staircase(4, [4], [100]))
    assert load_policy("vllm:lag=0").verify_lengths(view).tolist() == [1]
