import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.throughput.formats.knots import (
    captured_knots,
    floor_knots,
    from_one,
    held,
    linear_knots,
)
from dspark_sim.throughput.lookup import next_size, size_below

costs = st.lists(st.sampled_from([1.0, 2.0, 2.5, 4.0]), min_size=1, max_size=40).map(np.array)


@given(costs)
def test_every_reduction_is_read_back_by_its_rule(ms):
    sizes = np.arange(3, 3 + len(ms))
    assert next_size(*captured_knots(sizes, ms), sizes).tolist() == ms.tolist()
    stepped = np.ones(len(ms), dtype=bool)
    assert size_below(*floor_knots(sizes, ms, stepped), sizes).tolist() == ms.tolist()
    at, knots = linear_knots(sizes, ms)
    assert np.interp(sizes, at, knots) == pytest.approx(ms)


@given(costs)
def test_no_reduction_keeps_more_than_it_must(ms):
    sizes = np.arange(len(ms))
    changes = int((np.diff(ms) != 0).sum())
    assert len(captured_knots(sizes, ms)[0]) == changes + 1
    assert len(floor_knots(sizes, ms, np.ones(len(ms), dtype=bool))[0]) == changes + 1


def test_a_straight_line_is_two_points():
    sizes = np.arange(1, 1000)
    at, ms = linear_knots(sizes, 5.0 + 0.1 * sizes)
    assert at.tolist() == [1, 999]
    assert ms.tolist() == pytest.approx([5.1, 104.9])


def test_along_a_line_a_floor_point_comes_every_half_percent():
    sizes = np.arange(1, 1000)
    line = 100.0 + sizes
    at, ms = floor_knots(sizes, line, np.zeros(len(sizes), dtype=bool))
    error = np.abs(size_below(at, ms, sizes) / line - 1.0)
    assert 0.003 < error.max() <= 0.005
    assert len(at) < 500


@pytest.mark.parametrize(
    ("sizes", "moved"), [([0, 4], [1, 4]), ([0, 1, 4], [1, 4]), ([0], [1]), ([2, 4], [2, 4])]
)
def test_a_point_at_zero_moves_up_to_one(sizes, moved):
    at, ms = from_one(np.array(sizes), 8.0 + 4.0 * np.array(sizes))
    assert at.tolist() == moved
    assert ms.tolist() == [8.0 if sizes == [0] else 8.0 + 4.0 * size for size in moved]


def test_held_ends_reach_from_one_to_the_last_size():
    at, ms = held(np.array([4, 8]), np.array([2.0, 3.0]), 20)
    assert at.tolist() == [1, 4, 8, 20]
    assert ms.tolist() == [2.0, 2.0, 3.0, 3.0]
    assert held(np.array([1, 8]), np.array([2.0, 3.0]), 4)[0].tolist() == [1, 8]
