from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_sweep import make_sweep
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.study.pareto import (
    area_under_frontier,
    compare,
    frontier,
    interactivity_at,
    pareto_frontier,
    throughput_at,
)

COORDINATE = st.one_of(
    st.integers(-3, 3).map(float), st.floats(-10, 10), st.sampled_from([np.nan, np.inf, -np.inf])
)
POINTS = st.lists(st.tuples(COORDINATE, COORDINATE), max_size=25)


def sweep_of(**curves):
    """One row per point of `policy = [(tok_s_user, tok_s_gpu), ...]`, loads 1, 2, ..., seed 0."""
    return pd.DataFrame(
        [
            {
                "policy": policy, "concurrency": index + 1, "request_rate": np.nan,
                "seed": 0, "tok_s_user": user, "tok_s_gpu": gpu,
            }
            for policy, points in curves.items()
            for index, (user, gpu) in enumerate(points)
        ]
    )  # fmt: skip


def by_definition(points):
    def dominated(p):
        return any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in points)

    return [not np.isnan(p).any() and not dominated(p) for p in points]


@given(POINTS)
def test_the_frontier_is_the_set_of_points_nothing_dominates(points):
    x, y = [p[0] for p in points], [p[1] for p in points]
    assert pareto_frontier(x, y).tolist() == by_definition(points)


@given(POINTS, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(points, random):
    order = list(range(len(points)))
    random.shuffle(order)
    x, y = np.array(points).reshape(-1, 2).T
    assert (pareto_frontier(x[order], y[order]) == pareto_frontier(x, y)[order]).all()


def test_equal_points_stand_or_fall_together():
    assert pareto_frontier([1, 1, 0, 0], [1, 1, 0, 0]).tolist() == [True, True, False, False]


def test_lists_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equally long"):
        pareto_frontier([1.0], [1.0, 2.0])


def test_the_oracle_never_stands_on_the_joint_frontier_and_is_marked():
    points = frontier(make_sweep())
    oracle = points[points["policy"] == "oracle"]
    assert len(oracle) > 0
    assert not oracle["lossless"].any()
    assert not oracle["on_frontier"].any()
    assert points.loc[points["policy"] != "oracle", "lossless"].all()


def test_the_oracle_dominates_nobody_on_the_joint_frontier():
    runs = sweep_of(oracle=[(9, 9)], vllm=[(2, 5)], none=[(1, 4)])
    points = frontier(runs).set_index("policy")
    assert points["on_frontier"].to_dict() == {"oracle": False, "vllm": True, "none": False}


def test_each_policy_keeps_its_own_frontier_by_rising_interactivity():
    runs = sweep_of(vllm=[(90, 10), (60, 40), (30, 20)], none=[(50, 5), (20, 15)])
    points = frontier(runs)
    assert points[["policy", "tok_s_user"]].to_numpy().tolist() == [
        ["vllm", 60], ["vllm", 90], ["none", 20], ["none", 50],
    ]  # fmt: skip


def test_between_points_a_curve_is_linear_and_outside_it_is_undefined():
    runs = sweep_of(vllm=[(100, 10), (60, 50), (20, 30), (50, 70)])
    at = throughput_at(runs, "vllm", [49, 50, 55, 60, 80, 100, 101])
    np.testing.assert_allclose(at, [np.nan, 70, 60, 50, 30, 10, np.nan])
    back = interactivity_at(runs, "vllm", [9, 10, 30, 50, 60, 70, 71])
    np.testing.assert_allclose(back, [np.nan, 100, 80, 60, 55, 50, np.nan])


def test_a_single_point_answers_only_at_itself():
    runs = sweep_of(vllm=[(100, 10)])
    np.testing.assert_allclose(throughput_at(runs, "vllm", [99.9, 100]), [np.nan, 10])


def test_a_policy_without_a_known_point_has_no_curve():
    runs = sweep_of(vllm=[(np.nan, 10)], none=[(1, 2)])
    assert np.isnan(throughput_at(runs, "vllm", 100.0))
    assert area_under_frontier(runs, "vllm") == 0.0
    assert compare(runs, "vllm", "none").empty


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12))
def test_interactivity_at_undoes_throughput_at(points):
    runs = sweep_of(vllm=points)
    users = frontier(runs)["tok_s_user"]
    at = np.linspace(users.min(), users.max(), 7)
    np.testing.assert_allclose(interactivity_at(runs, "vllm", throughput_at(runs, "vllm", at)), at)


def test_the_area_counts_what_is_offered_at_no_less_than_the_asked_interactivity():
    runs = sweep_of(vllm=[(4, 2), (2, 6)])
    assert area_under_frontier(runs, "vllm") == pytest.approx(2 * 6 + 2 * (6 + 2) / 2)
    assert area_under_frontier(runs, "vllm", 1, 3) == pytest.approx(1 * 6 + (6 + 4) / 2)
    assert area_under_frontier(runs, "vllm", 3, 10) == pytest.approx((4 + 2) / 2)
    assert area_under_frontier(runs, "vllm", 4, 10) == 0.0


def test_a_gain_is_the_ratio_of_the_two_curves():
    runs = sweep_of(vllm=[(100, 20), (50, 60)], none=[(80, 10), (40, 50)])
    table = compare(runs, "vllm", "none", at_tok_s_user=[60], at_tok_s_gpu=[40])
    assert table["equal"].tolist() == ["tok_s_user", "tok_s_gpu"]
    np.testing.assert_allclose(table["policy_value"], [52, 75])
    np.testing.assert_allclose(table["baseline_value"], [30, 50])
    np.testing.assert_allclose(table["gain_pct"], [100 * (52 / 30 - 1), 50])
    assert table["gain_pct_ci95"].isna().all()


def test_no_gain_is_told_where_one_curve_does_not_reach():
    runs = sweep_of(vllm=[(100, 20), (50, 60)], none=[(80, 10), (40, 50)])
    row = compare(runs, "vllm", "none", at_tok_s_user=[90]).iloc[0]
    assert row["n_seeds"] == 0
    assert row["policy_value"] == pytest.approx(28)
    assert np.isnan(row["baseline_value"])
    assert np.isnan(row["gain_pct"])


def test_a_policy_gains_nothing_on_itself():
    table = compare(make_sweep(), "vllm", "vllm")
    assert len(table) >= 10
    np.testing.assert_allclose(table["gain_pct"], 0.0, atol=1e-9)


def test_gains_are_paired_by_seed():
    base = [(80.0, 10.0), (40.0, 50.0)]
    seeds = []
    for seed, luck in enumerate((0.8, 1.0, 1.3)):
        better = [(user, 1.1 * gpu * luck) for user, gpu in base]
        runs = sweep_of(vllm=better, none=[(user, gpu * luck) for user, gpu in base])
        seeds.append(runs.assign(seed=seed))
    table = compare(pd.concat(seeds), "vllm", "none", at_tok_s_user=[60])
    assert table["n_seeds"].item() == 3
    assert table["gain_pct"].item() == pytest.approx(10)
    assert table["gain_pct_ci95"].item() == pytest.approx(0, abs=1e-9)
    assert table["policy_value_ci95"].item() > 1


def test_the_default_points_are_round_and_reached_by_every_seed():
    table = compare(make_sweep(), "vllm", "fixed:3")
    assert table.groupby("equal").size().min() >= 5
    assert (table["n_seeds"] == 3).all()
    assert table["gain_pct"].notna().all()
    assert (table["at"] % 25 == 0).all()


def test_curves_that_share_no_interactivity_have_no_default_points():
    runs = sweep_of(vllm=[(100, 20), (90, 25)], none=[(80, 1), (40, 5)])
    assert compare(runs, "vllm", "none").empty


def test_unknown_policies_and_unshared_seeds_are_told():
    runs = sweep_of(vllm=[(100, 20)], none=[(80, 1)])
    with pytest.raises(UserError, match="unknown policy 'nona' in the sweep: did you mean 'none'"):
        throughput_at(runs, "nona", 1)
    runs.loc[0, "seed"] = 7
    with pytest.raises(UserError, match="share no seed"):
        compare(runs, "vllm", "none")


def test_the_papers_gains_are_read_off_its_own_curves():
    shared = Path(__file__).parents[2] / "shared"
    path = shared / "reference" / "paper" / "fig7_frontier_resampled.csv"
    if not path.exists():
        pytest.skip(f"{path.name}: the published curve is not here")
    flash = pd.read_csv(path).query("model == 'DeepSeek-V4-Flash'")
    curves = {
        policy: list(zip(rows["tps_tok_s_user"], rows["throughput_tok_s_gpu"], strict=True))
        for policy, rows in flash.groupby("method")
    }
    table = compare(sweep_of(**curves), "DSpark", "MTP", [80, 120], [10611.56])
    np.testing.assert_allclose(table["gain_pct"], [51, 661, 60], rtol=0.01)
