import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.throughput.draft import DraftCost
from dspark_sim.throughput.lookup import Curve

SIZES = np.array([1, 4, 8, 16, 32])
MS = np.array([5.0, 6.0, 5.5, 50.0, 80.0])


def curve(rule, **options):
    return Curve(SIZES, MS, rule, **options)


def test_a_captured_batch_costs_what_the_next_captured_size_does():
    assert curve("captured", capture_limit=8).cost_ms([1, 2, 4, 5, 8]).tolist() == [
        5,
        6,
        6,
        5.5,
        5.5,
    ]


def test_beyond_the_capture_limit_only_eager_points_are_interpolated():
    eager = curve("captured", capture_limit=8)
    assert eager.cost_ms([9, 15, 16, 24, 32]).tolist() == [50, 50, 50, 65, 80]
    assert eager.clamped([8, 9, 15, 16, 33]).tolist() == [False, True, True, False, False]


def test_without_a_capture_limit_every_measured_size_is_captured():
    assert curve("captured").cost_ms([9, 17]).tolist() == [50, 80]


def test_the_linear_rule_interpolates_between_all_points():
    assert curve("linear").cost_ms([1, 2, 12]).tolist() == pytest.approx([5, 5 + 1 / 3, 27.75])


def test_the_floor_rule_takes_the_size_at_or_below():
    assert curve("floor").cost_ms([1, 3, 4, 31, 32]).tolist() == [5, 5, 6, 50, 80]


@pytest.mark.parametrize("rule", ["captured", "linear", "floor"])
def test_beyond_the_end_the_last_slope_goes_on_and_is_marked(rule):
    extended = curve(rule, capture_limit=8 if rule == "captured" else None)
    assert extended.cost_ms([48]).tolist() == [80 + 16 * 30 / 16]
    assert extended.extended([32, 33]).tolist() == [False, True]


def test_a_falling_last_slope_is_held_constant():
    falling = Curve(SIZES[:3], MS[:3], "linear")
    assert falling.cost_ms([8, 100]).tolist() == [5.5, 5.5]


def test_a_lone_eager_point_is_held_and_never_bridges_the_cliff():
    lone = Curve(SIZES[:4], MS[:4], "captured", capture_limit=8)
    assert lone.cost_ms([9, 16, 1000]).tolist() == [50, 50, 50]


def test_sizes_below_the_first_point_belong_only_to_captured_and_clamped_tables():
    sizes = np.array([8, 16])
    ms = np.array([1.0, 2.0])
    assert Curve(sizes, ms, "linear").extended([7, 8]).tolist() == [True, False]
    assert Curve(sizes, ms, "floor").extended([7]).tolist() == [True]
    assert Curve(sizes, ms, "captured").extended([7]).tolist() == [False]
    assert Curve(sizes, ms, "linear", clamp_below=True).extended([7]).tolist() == [False]
    assert Curve(sizes, ms, "linear").cost_ms([1]).tolist() == [1.0]


@given(
    points=st.dictionaries(st.integers(1, 300), st.floats(0.1, 99), min_size=1, max_size=12),
    at=st.lists(st.integers(1, 400), min_size=1, max_size=20),
    data=st.data(),
)
def test_every_rule_agrees_with_a_plain_loop(points, at, data):
    sizes = np.array(sorted(points))
    ms = np.array([points[size] for size in sizes])
    limit = int(data.draw(st.sampled_from(sizes)))
    captured = Curve(sizes, ms, "captured", limit).cost_ms(at)
    floor = Curve(sizes, ms, "floor").cost_ms(at)
    eager = [size for size in sizes if size > limit]
    for index, size in enumerate(at):
        if size <= limit:
            assert captured[index] == points[min(s for s in sizes if s >= size)]
        elif eager and size <= eager[0]:
            assert captured[index] == points[eager[0]]
        elif eager and size <= eager[-1]:
            expected = np.interp(size, eager, [points[s] for s in eager])
            assert captured[index] == pytest.approx(expected)
        if sizes[0] <= size <= sizes[-1]:
            assert floor[index] == points[max(s for s in sizes if s <= size)]


def draft(lengths, autoregressive, rule="captured"):
    curves = tuple(
        Curve(np.array([1, 8]), length * np.array([1.0, 2.0]), rule) for length in lengths
    )
    return DraftCost(np.array(lengths), curves, autoregressive)


def test_one_length_of_a_block_drafter_holds_for_every_length():
    block = draft([7], autoregressive=False)
    assert block.cost_ms(2, [0, 1, 7, 20]).tolist() == [0, 14, 14, 14]
    assert not block.extended(8, 20)


def test_several_lengths_of_a_block_drafter_are_interpolated_and_held_below():
    block = draft([2, 6], autoregressive=False)
    assert block.cost_ms(1, [1, 2, 4, 6]).tolist() == [2, 2, 4, 6]
    assert block.extended(1, [6, 7]).tolist() == [False, True]


def test_an_autoregressive_drafter_is_linear_in_the_length():
    assert draft([4], autoregressive=True).cost_ms(1, [1, 2, 8]).tolist() == [1, 2, 8]
    several = draft([2, 6], autoregressive=True)
    assert several.cost_ms(1, [1, 2, 4, 6, 9]).tolist() == pytest.approx([1, 2, 4, 6, 9])
    assert not several.extended(1, [1, 9]).any()


def test_drafting_for_nobody_or_nothing_is_free_and_never_out_of_range():
    block = draft([7], autoregressive=False, rule="linear")
    assert block.cost_ms([0, 1000], [7, 0]).tolist() == [0, 0]
    assert not block.extended([0, 1000], [7, 0]).any()
    assert block.extended([9], [1]).all()


def test_requests_and_lengths_broadcast():
    assert draft([2, 6], autoregressive=False).cost_ms(
        np.arange(9)[:, None], np.arange(7)
    ).shape == (
        9,
        7,
    )
