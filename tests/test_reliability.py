import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dspark_sim.acceptance.reliability import (
    auc,
    calibration_metrics,
    expected_calibration_error,
    prefix_accepted,
    reliability_table,
    survival,
)
from dspark_sim.core import UserError

TWO = np.array([[0.5, 0.4], [0.5, 1.0], [0.9, 0.5], [0.9, 0.0]])
ACCEPTED = np.array([0, 2, 1, 2])


def test_survival_is_the_cumulative_product():
    np.testing.assert_allclose(survival(TWO), [[0.5, 0.2], [0.5, 0.5], [0.9, 0.45], [0.9, 0.0]])


def test_a_prefix_is_accepted_when_all_its_tokens_are():
    happened = prefix_accepted(np.array([0, 1, 2]), 2)
    np.testing.assert_array_equal(happened, [[0, 0], [1, 0], [1, 1]])


def test_the_metrics_of_four_blocks_are_those_computed_by_hand():
    table = calibration_metrics(TWO, ACCEPTED)
    assert list(table["position"]) == [1, 2]
    assert list(table["num_blocks"]) == [4, 4]
    # Position 1: two at 0.5, one accepted; two at 0.9, both accepted.
    assert table["predicted"][0] == pytest.approx(0.7)
    assert table["observed"][0] == pytest.approx(0.75)
    assert table["bias"][0] == pytest.approx(-0.05)
    assert table["ece"][0] == pytest.approx((0.0 + 2 * 0.1) / 4)
    assert table["brier"][0] == pytest.approx((0.25 + 0.25 + 0.01 + 0.01) / 4)
    assert table["auc"][0] == pytest.approx((0.5 + 1 + 1) / 3)
    # Position 2: survivals .2, .5, .45, 0 with outcomes 0, 1, 0, 1.
    assert table["ece"][1] == pytest.approx((0.2 + 0.5 + 0.45 + 1.0) / 4)
    assert table["brier"][1] == pytest.approx((0.04 + 0.25 + 0.2025 + 1.0) / 4)
    assert table["auc"][1] == pytest.approx(2 / 4)


def test_opposite_errors_in_one_bin_cancel_and_in_two_do_not():
    happened = np.array([True, False])
    assert expected_calibration_error(np.array([0.51, 0.49]), happened) == pytest.approx(0.49)
    assert expected_calibration_error(np.array([0.51, 0.53]), happened) == pytest.approx(0.02)


def test_certain_predictions_fall_into_the_outer_bins():
    confidence = np.array([[0.0], [0.0], [1.0], [1.0]])
    table = reliability_table(confidence, np.array([0, 1, 1, 1]), 1)
    assert list(table["bin"]) == [0, 19]
    assert list(table["low"]) == [0.0, 0.95]
    assert list(table["high"]) == [0.05, 1.0]
    assert list(table["predicted"]) == [0.0, 1.0]
    assert list(table["observed"]) == [0.5, 1.0]
    assert list(table["count"]) == [2, 2]
    assert calibration_metrics(confidence, np.array([0, 1, 1, 1]))["ece"][0] == pytest.approx(0.25)


def test_the_reliability_table_belongs_to_its_position():
    table = reliability_table(TWO, ACCEPTED, 2)
    assert list(table["count"]) == [1, 1, 1, 1]
    np.testing.assert_allclose(table["predicted"], [0.0, 0.2, 0.45, 0.5])
    assert list(table["observed"]) == [1.0, 0.0, 0.0, 1.0]


def test_the_auc_counts_ties_half_and_is_missing_without_both_outcomes():
    both = np.array([True, False])
    assert auc(np.array([0.9, 0.1]), both) == 1.0
    assert auc(np.array([0.1, 0.9]), both) == 0.0
    assert auc(np.array([0.3, 0.3]), both) == 0.5
    assert np.isnan(auc(np.array([0.3, 0.4]), np.array([True, True])))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=1))
def test_the_auc_equals_the_share_of_pairs_in_order(rows):
    score, happened = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    pairs = score[happened][:, None] - score[~happened]
    expected = np.mean((pairs > 0) + 0.5 * (pairs == 0)) if pairs.size else np.nan
    assert auc(score, happened) == pytest.approx(expected, nan_ok=True)


@given(arrays(float, (7, 3), elements=st.floats(0, 1)), arrays(int, 7, elements=st.integers(0, 3)))
def test_the_ece_lies_between_the_bias_and_one(confidence, accepted):
    table = calibration_metrics(confidence, accepted)
    assert (table["ece"] >= table["bias"].abs() - 1e-12).all()
    assert (table["ece"] <= 1.0).all()
    for position, ece in zip(table["position"], table["ece"], strict=True):
        bins = reliability_table(confidence, accepted, position)
        assert bins["count"].sum() == 7
        gaps = (bins["predicted"] - bins["observed"]).abs() * bins["count"] / 7
        assert gaps.sum() == pytest.approx(ece, abs=1e-12)


@pytest.mark.parametrize(
    ("confidence", "accepted", "sentence"),
    [
        ([0.5], [1], r"shape \(1,\)"),
        ([[0.5]], [1, 0], r"shape \(2,\)"),
        (np.zeros((0, 3)), np.zeros(0, int), "at least 1"),
        ([[1.5]], [1], r"confidence must lie in 0..1, found 1.5"),
        ([[np.nan]], [1], "found nan"),
        ([[0.5]], [2], r"whole numbers in 0..1, found 2..2"),
        ([[0.5]], [-1], "found -1..-1"),
        ([[0.5]], [0.5], "whole numbers"),
    ],
)
def test_blocks_that_make_no_sense_are_told(confidence, accepted, sentence):
    with pytest.raises(UserError, match=sentence):
        calibration_metrics(confidence, accepted)


@pytest.mark.parametrize("position", [0, 3])
def test_a_position_outside_the_block_is_told(position):
    with pytest.raises(UserError, match=rf"position {position} is outside 1\.\.2"):
        reliability_table(TWO, ACCEPTED, position)
