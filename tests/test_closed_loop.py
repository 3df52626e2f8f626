import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dspark_sim.throughput.closed_loop import ClosedLoop, knots_for

LOADS = np.array([1.0, 5.0, 64.0, 64.0])
LENGTHS = np.array([0, 3, 1, 4])


def model(draft_power=0):
    return ClosedLoop(
        knots=knots_for(np.array([1.0, 320.0])),
        max_draft_len=4,
        max_requests=64,
        scale_ms=10.0,
        per_request=True,
        draft_power=draft_power,
    )


def parameters(one, seed=1):
    values = one.start()
    return values + 0.3 * np.random.default_rng(seed).random(len(values))


def test_a_user_gets_acceptance_length_tokens_per_step_time():
    one = model()
    at = parameters(one)
    rates = 1.0 / (1.0 + np.exp(-at[one.logits]))
    length = 1.0 + np.cumprod(rates[:3]).sum()
    theta = np.exp(one.theta_rows(np.array([20.0])) @ at)[0]
    alpha, fixed, per_request = 10.0 * at[one.costs] * np.array([5 / 64, 1.0, 5 / 64])
    expected = 1000.0 * length / (theta + alpha + fixed + per_request)
    rate = np.exp(one.log_rate(at, np.array([5.0]), np.array([3]))[0])
    assert rate[0] == pytest.approx(expected)


def test_without_drafts_there_is_no_draft_cost_and_one_token_a_step():
    one = model()
    dear = parameters(one)
    dear[one.costs.start + 1 :] = 100.0
    cheap = dear.copy()
    cheap[one.costs.start + 1 :] = 0.0
    plain = (np.array([8.0]), np.array([0]))
    assert one.log_rate(dear, *plain)[0] == one.log_rate(cheap, *plain)[0]


def test_an_autoregressive_draft_costs_once_per_token():
    one = model(draft_power=1)
    rows = one.cost_rows(np.array([8.0, 8.0, 8.0]), np.array([0, 2, 4]))
    cost = rows @ parameters(one)
    assert cost[2] - cost[0] == pytest.approx(2 * (cost[1] - cost[0]))


@pytest.mark.parametrize("draft_power", [None, 0, 1])
@pytest.mark.parametrize("quantity", ["log_rate", "step", "length", "survival"])
def test_gradients_are_those_of_the_values(draft_power, quantity):
    one = model(draft_power)
    at = parameters(one)

    def value(where):
        loads = (LOADS, LENGTHS) if quantity in ("log_rate", "step") else ()
        return getattr(one, quantity)(where, *loads)

    slopes = np.column_stack(
        [(value(at + step)[0] - value(at - step)[0]) / 2e-6 for step in 1e-6 * np.eye(len(at))]
    )
    assert value(at)[1] == pytest.approx(slopes, rel=1e-5, abs=1e-6)


@given(arrays(float, 9, elements=st.floats(0.0, 1.0)), st.floats(1.0, 400.0), st.floats(1.0, 4.0))
def test_theta_never_falls(increments, size, factor):
    one = model()
    at = one.start()
    at[1 : len(one.knots)] = increments
    smaller, larger = one.theta_rows(np.array([size, size * factor])) @ at
    assert larger >= smaller - 1e-12


def test_theta_is_linear_between_knots_on_both_logarithms_and_flat_beyond():
    one = model()
    at = parameters(one)
    low, high = np.exp(one.knots[3:5])
    inside, outside = np.array([low, np.sqrt(low * high), high]), np.array([320.0, 5000.0])
    left, middle, right = one.theta_rows(inside) @ at
    assert middle == pytest.approx((left + right) / 2)
    assert np.ptp(one.theta_rows(outside) @ at) == 0.0


def test_knots_are_at_most_an_octave_apart_and_reach_both_ends():
    knots = knots_for(np.array([3.0, 700.0, 20.0]))
    assert np.exp(knots[[0, -1]]) == pytest.approx([3.0, 700.0])
    assert (np.diff(knots) <= np.log(2.0) + 1e-12).all()
    assert np.ptp(np.diff(knots)) < 1e-12


def test_the_prior_wants_a_straight_line_and_free_costs_at_zero():
    one = model()
    rows, target = one.prior(0.2)
    at = one.start()
    at[1 : len(one.knots)] = 0.3
    at[one.logits] = 1.0
    at[one.costs] = 0.0
    assert rows @ at == pytest.approx(target)
