import numpy as np
import pandas as pd
import pytest
from fake_sweep import make_sweep
from scipy import stats

from dspark_sim.core import UserError
from dspark_sim.study.seeds import aggregate, paired_difference


def test_a_mean_carries_students_interval_over_seeds():
    runs = make_sweep(policies=["vllm"], concurrency=[8], seeds=5)
    row = aggregate(runs).iloc[0]
    values = runs["tok_s_gpu"]
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    assert row["n_seeds"] == 5
    assert row["tok_s_gpu"] == pytest.approx(values.mean())
    assert row["tok_s_gpu_ci95"] == pytest.approx((high - low) / 2)


def test_one_seed_has_no_interval():
    means = aggregate(make_sweep(seeds=1))
    widths = means[[column for column in means if column.endswith("_ci95")]]
    assert widths.isna().all().all()
    assert means["tok_s_gpu"].notna().all()


def test_policies_keep_the_order_of_the_sweep_and_loads_rise():
    runs = make_sweep(policies=["vllm", "none"], concurrency=[64, 1, 8])
    means = aggregate(runs)
    assert list(means["policy"]) == ["vllm"] * 3 + ["none"] * 3
    assert list(means["load"]) == [1, 8, 64] * 2


def test_shuffled_rows_change_no_mean():
    runs = make_sweep(policies=["vllm"])
    pd.testing.assert_frame_equal(aggregate(runs), aggregate(runs.sample(frac=1, random_state=1)))


def test_the_load_of_an_open_loop_run_is_its_request_rate():
    runs = make_sweep(policies=["vllm"], concurrency=[4])
    runs["concurrency"], runs["request_rate"] = np.nan, 2.5
    assert aggregate(runs)["load"].tolist() == [2.5]


def test_concurrency_may_hold_missing_values_of_any_kind():
    runs = make_sweep(policies=["vllm"], concurrency=[4, 8])
    nullable = runs.assign(concurrency=runs["concurrency"].astype("Int64"))
    nullable["request_rate"] = pd.Series([None] * len(runs), dtype=object)
    pd.testing.assert_frame_equal(aggregate(nullable), aggregate(runs))


def test_a_missing_value_is_left_out_of_its_metric_only():
    runs = make_sweep(policies=["vllm"], concurrency=[4])
    runs.loc[0, "ttft_p99_ms"] = np.nan
    row = aggregate(runs).iloc[0]
    assert row["n_seeds"] == 3
    assert row["ttft_p99_ms"] == pytest.approx(runs["ttft_p99_ms"][1:].mean())
    assert row["tok_s_gpu"] == pytest.approx(runs["tok_s_gpu"].mean())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda runs: runs.drop(columns="seed"), "lacks the column 'seed'"),
        (lambda runs: runs.iloc[:0], "holds no run"),
        (lambda runs: pd.concat([runs, runs]), "policy 'vllm' at load 4 with seed 0 twice"),
    ],
)
def test_a_broken_sweep_is_told_in_one_sentence(spoil, message):
    runs = spoil(make_sweep(policies=["vllm"], concurrency=[4]))
    with pytest.raises(UserError, match=message):
        aggregate(runs)


def test_pairing_by_seed_cancels_the_luck_that_both_share():
    luck = np.random.default_rng(0).normal(0, 100, 30)
    noise = np.random.default_rng(1).normal(0, 1, 30)
    runs = make_sweep(policies=["vllm", "none"], concurrency=[4], seeds=30)
    runs.loc[runs["policy"] == "vllm", "tok_s_gpu"] = 1010 + luck + noise
    runs.loc[runs["policy"] == "none", "tok_s_gpu"] = 1000 + luck
    row = paired_difference(runs, "tok_s_gpu", "vllm", "none").iloc[0]
    expected = stats.ttest_1samp(10 + noise, 0).confidence_interval(0.95)
    assert row["difference"] - row["difference_ci95"] == pytest.approx(expected.low)
    assert row["difference"] + row["difference_ci95"] == pytest.approx(expected.high)
    assert row["difference_ci95"] < row["policy_value_ci95"] / 20


def test_a_pair_needs_the_same_load_and_seed():
    runs = make_sweep(policies=["vllm", "none"], concurrency=[4, 8])
    gone = (runs["policy"] == "none") & ((runs["seed"] == 2) | (runs["concurrency"] == 8))
    table = paired_difference(runs[~gone], "tok_s_gpu", "vllm", "none")
    assert table["load"].tolist() == [4]
    assert table["n_seeds"].tolist() == [2]


def test_a_relative_difference_from_zero_is_undefined():
    runs = make_sweep(policies=["vllm", "none"], concurrency=[4])
    table = paired_difference(runs, "wasted_fraction", "vllm", "none")
    assert table["difference"].item() > 0
    assert np.isnan(table["difference_pct"].item())


def test_unknown_names_in_a_paired_difference_are_told_with_the_nearest():
    runs = make_sweep(policies=["vllm", "none"], concurrency=[4])
    with pytest.raises(UserError, match="did you mean 'vllm'"):
        paired_difference(runs, "tok_s_gpu", "vlm", "none")
    with pytest.raises(UserError, match="did you mean 'tok_s_gpu'"):
        paired_difference(runs, "tok_s_gp", "vllm", "none")
    apart = runs.assign(seed=runs["seed"] + 10 * (runs["policy"] == "none"))
    with pytest.raises(UserError, match="share no load and seed"):
        paired_difference(apart, "tok_s_gpu", "vllm", "none")
