import numpy as np
import pytest

from dspark_sim.acceptance.ratio import ratio_with_error


def test_the_error_counts_groups_and_not_values():
    values, groups = np.repeat([1.0, 3.0], 50), np.repeat([0, 1], 50)
    assert ratio_with_error(values, groups) == pytest.approx((2.0, 1.0))


def test_two_unequal_groups_are_as_computed_by_hand():
    # Sums 6 and 1, counts 2 and 1: mean 7/3, deviations ±4/3, mean count 3/2.
    found = ratio_with_error(np.array([2.0, 4.0, 1.0]), np.array([5, 5, 9]))
    assert found == pytest.approx((7 / 3, np.sqrt(2) * 4 / 3 / np.sqrt(2) / 1.5))


def test_the_error_is_that_of_repeated_draws():
    rng = np.random.default_rng(0)

    def draw():
        counts = rng.integers(1, 8, 60)
        groups = np.repeat(np.arange(60), counts)
        return ratio_with_error(rng.normal(counts[groups] / 4, 1.0), groups)

    means, errors = np.array([draw() for _ in range(400)]).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.1)


def test_one_group_has_no_error_and_no_values_have_no_mean():
    assert ratio_with_error(np.array([1.0, 2.0]), np.array([0, 0])) == pytest.approx(
        (1.5, np.nan), nan_ok=True
    )
    nothing = ratio_with_error(np.zeros(0), np.zeros(0, dtype=int))
    assert np.isnan(nothing).all()
