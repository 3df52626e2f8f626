"""Where an adaptive sweep adds a concurrency."""

import numpy as np
import pandas as pd
import pytest
from fake_sweep import make_sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim.study.refine import next_concurrency


def runs(curves, seeds=1):
    """Return a sweep from {policy: {concurrency: (tok_s_user, tok_s_gpu)}}."""
    rows = [
        {"policy": policy, "concurrency": load, "request_rate": np.nan, "seed": seed,
         "tok_s_user": user, "tok_s_gpu": gpu}
        for policy, curve in curves.items()
        for load, (user, gpu) in curve.items()
        for seed in range(seeds)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def knee(loads, at, slope=2.0):
    """Return a curve that falls gently up to a concurrency and steeply beyond, in logarithms."""
    curve = {}
    for load in loads:
        below, above = min(load, at), max(load / at, 1.0)
        user = below**-0.1 * above**-slope
        curve[load] = (user, load * user)
    return curve


def refined(curve_of, loads, count):
    """Return the concurrencies that are added one after the other."""
    added = []
    for _ in range(count):
        found = next_concurrency(runs(curve_of(sorted([*loads, *added]))))
        if found is None:
            break
        added.append(found)
    return added


def test_the_concurrency_is_added_beside_the_knee():
    curve = knee([1, 4, 16, 64, 256], at=16, slope=0.9)
    assert next_concurrency(runs({"none": curve})) in (8, 32)


@pytest.mark.parametrize("at", [20, 40, 60])
def test_additions_close_in_on_the_knee(at):
    grid = [1, 4, 16, 64, 256]
    loads = [*grid, *refined(lambda all_: {"none": knee(all_, at, slope=0.9)}, grid, 8)]
    below, above = max(c for c in loads if c <= at), min(c for c in loads if c >= at)
    even = 256 ** (1 / (len(loads) - 1))
    assert above / below < 1.25 < even


def test_the_longer_gap_beside_the_largest_bend_is_halved():
    curve = {1: (10.0, 1.0), 8: (9.0, 8.0), 100: (1.0, 9.0), 128: (0.8, 9.1)}
    assert next_concurrency(runs({"none": curve})) == 28


def test_a_straight_line_is_halved_at_its_longest_gap():
    curve = {load: (1 / load, load) for load in (1, 2, 4, 64, 128)}
    assert next_concurrency(runs({"none": curve})) == 16


def test_two_concurrencies_are_enough():
    assert next_concurrency(runs({"none": {2: (2.0, 1.0), 50: (1.0, 2.0)}})) == 10


def test_equal_gaps_are_halved_from_the_smallest_on():
    curve = {load: (1 / load, load) for load in (1, 4, 16, 64)}
    assert next_concurrency(runs({"none": curve})) == 2


def test_the_policy_that_bends_most_decides_for_all():
    straight = {load: (1 / load, load) for load in (1, 4, 16, 64, 256)}
    bent = knee(straight, at=64, slope=0.9)
    alone = next_concurrency(runs({"b": bent}))
    assert next_concurrency(runs({"a": straight, "b": bent})) == alone
    assert next_concurrency(runs({"b": bent, "a": straight})) == alone


def test_a_bend_off_the_frontier_does_not_count():
    curve = {1: (4.0, 1.0), 4: (3.0, 4.0), 16: (2.0, 8.0), 64: (0.1, 0.1), 256: (0.01, 0.4)}
    assert next_concurrency(runs({"none": curve})) == 32


def test_a_gap_without_a_whole_number_in_it_is_passed_over():
    curve = {7: (4.0, 1.0), 8: (3.9, 8.0), 9: (1.0, 8.1), 11: (0.9, 8.2)}
    assert next_concurrency(runs({"none": curve})) == 10


@pytest.mark.parametrize("loads", [[1], [1, 2], [5, 6, 7]])
def test_without_room_nothing_is_added(loads):
    assert next_concurrency(runs({"none": {c: (1 / c, float(c)) for c in loads}})) is None


def test_points_without_a_speed_are_left_out():
    curve = {1: (2.0, 1.0), 10: (np.nan, 5.0), 100: (1.0, 2.0)}
    assert next_concurrency(runs({"none": curve})) == 10
    assert next_concurrency(runs({"none": {1: (np.nan, 1.0), 9: (np.nan, 2.0)}})) is None


def test_seeds_count_by_their_mean():
    table = make_sweep(policies=("none", "vllm"), seeds=3)
    means = table.groupby(["policy", "concurrency"], as_index=False, sort=False).mean(
        numeric_only=True
    )
    assert next_concurrency(table) == next_concurrency(means.assign(seed=0))


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 500), min_size=2, max_size=8, unique=True),
    st.integers(1, 6),
    st.floats(0.1, 3.0),
)
def test_what_is_added_is_new_inside_and_the_same_in_any_order(loads, count, slope):
    at = sorted(loads)[len(loads) // 2]
    added = refined(lambda all_: {"none": knee(all_, at, slope)}, loads, count)
    assert len(set(added) | set(loads)) == len(added) + len(loads)
    assert all(min(loads) < load < max(loads) for load in added)
    again = refined(lambda all_: {"none": knee(all_[::-1], at, slope)}, loads, count)
    assert again == added
    fewer = refined(lambda all_: {"none": knee(all_, at, slope)}, loads, count - 1)
    assert fewer == added[: count - 1]
