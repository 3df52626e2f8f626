import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from dspark_sim.acceptance.reliability import calibration_metrics, expected_calibration_error
from dspark_sim.acceptance.temperature import GRID, SequentialTemperatureScaling
from dspark_sim.acceptance.temperature_file import read_temperatures, write_temperatures
from dspark_sim.core import UserError

STEP = 10**0.05
"""Ratio of neighbouring temperatures of the grid."""
PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def distorted(temperatures, n=20_000, seed=3):
    """Blocks whose true rates are known, reported with the logit multiplied by a temperature."""
    draw = np.random.default_rng(seed)
    z = draw.normal(0.8, 1.2, (n, len(temperatures)))
    hits = draw.random(z.shape) < expit(z)
    return expit(z * np.array(temperatures)), np.cumprod(hits, axis=1).sum(axis=1)


def test_the_grid_is_that_of_sglang_and_holds_one():
    assert len(GRID) == 41
    assert (GRID[0], GRID[20], GRID[-1]) == pytest.approx((0.1, 1.0, 10.0))
    assert 1.0 in GRID


def test_each_position_gets_back_the_temperature_it_was_distorted_by():
    true = (1.8, 0.5, 3.0)
    scaling = SequentialTemperatureScaling.fit(*distorted(true))
    np.testing.assert_array_less(np.abs(np.log(np.array(scaling.temperatures) / true)), 0.2)


def test_fitting_left_to_right_equals_trying_every_temperature_in_turn():
    confidence, accepted = distorted((1.5, 0.7), n=300)
    grid = (0.5, 1.0, 2.0)
    scaling = SequentialTemperatureScaling.fit(confidence, accepted, grid=grid)
    kept = np.ones(300)
    for k, chosen in enumerate(scaling.temperatures):
        tried = {t: kept * expit(logit(confidence[:, k]) / t) for t in grid}
        errors = {t: expected_calibration_error(p, accepted > k) for t, p in tried.items()}
        assert errors[chosen] == min(errors.values())
        assert scaling.ece_after[k] == errors[chosen]
        kept = tried[chosen]


def test_the_errors_it_reports_are_those_of_its_own_blocks():
    confidence, accepted = distorted((2.0, 2.0), n=2000)
    scaling = SequentialTemperatureScaling.fit(confidence, accepted, "toy")
    assert (scaling.dataset, scaling.num_samples) == ("toy", 2000)
    before = calibration_metrics(confidence, accepted)["ece"]
    after = calibration_metrics(scaling.apply(confidence), accepted)["ece"]
    np.testing.assert_allclose(scaling.ece_before, before, rtol=1e-9)
    np.testing.assert_allclose(scaling.ece_after, after, rtol=1e-9)
    assert (np.array(scaling.ece_after) < scaling.ece_before).all()


def test_confidence_that_no_temperature_changes_keeps_temperature_one():
    certain = np.array([[0.0, 0.5], [1.0, 0.5], [1.0, 1.0]])
    scaling = SequentialTemperatureScaling.fit(certain, np.array([0, 1, 2]))
    assert scaling.temperatures == (1.0, 1.0)
    assert scaling.ece_after[0] == 0.0


def test_temperature_two_halves_the_logit():
    calibrated = SequentialTemperatureScaling((2.0, 1.0)).apply(np.array([[0.9, 0.3]]))
    np.testing.assert_allclose(calibrated, [[0.75, 0.3]])  # odds 9 become odds 3


def test_zero_and_one_stay_and_temperature_one_changes_nothing():
    values = np.array([[0.0, 0.1], [1.0, 1 / 3]])
    scaling = SequentialTemperatureScaling((1.7, 1.0))
    np.testing.assert_array_equal(scaling.apply(values)[:, 0], [0.0, 1.0])
    np.testing.assert_array_equal(scaling.apply(values)[:, 1], values[:, 1])


@given(PROBABILITIES, st.floats(0.1, 10.0))
def test_temperatures_keep_the_order_within_a_position(values, temperature):
    column = np.sort(values)[:, None]
    calibrated = SequentialTemperatureScaling((temperature,)).apply(column)[:, 0]
    assert ((calibrated >= 0) & (calibrated <= 1)).all()
    assert (np.diff(calibrated) >= -1e-12).all()


@given(st.floats(0.01, 0.98), st.floats(0.001, 0.01), st.floats(0.3, 10.0))
def test_temperatures_keep_differences_apart(low, step, temperature):
    scaling = SequentialTemperatureScaling((temperature,))
    first, second = scaling.apply(np.array([[low], [low + step]]))[:, 0]
    assert first < second


def test_shorter_blocks_use_the_first_temperatures_and_longer_ones_are_told():
    scaling = SequentialTemperatureScaling((2.0, 3.0))
    np.testing.assert_allclose(scaling.apply(np.array([[0.9]])), [[0.75]])
    with pytest.raises(UserError, match=r"shape \(1, 3\) does not fit 2 temperatures"):
        scaling.apply(np.full((1, 3), 0.5))


@pytest.mark.parametrize("temperatures", [(), (0.0,), (1.0, -2.0), (np.nan,), (np.inf,)])
def test_temperatures_must_be_positive_numbers(temperatures):
    with pytest.raises(UserError, match="temperatures must be positive numbers, got"):
        SequentialTemperatureScaling(temperatures)
    with pytest.raises(UserError, match="temperatures must be positive numbers, got"):
        SequentialTemperatureScaling.fit(np.array([[0.5]]), np.array([1]), grid=temperatures)


def test_temperatures_are_frozen():
    with pytest.raises(FrozenInstanceError):
        SequentialTemperatureScaling((1.0,)).dataset = "other"


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8), st.text(max_size=9), st.integers(0, 99)
)
def test_a_file_gives_back_what_was_written(tmp_path_factory, values, dataset, count):
    shares = tuple(0.01 * k for k in range(len(values)))
    scaling = SequentialTemperatureScaling(tuple(values), dataset, count, shares, shares)
    path = tmp_path_factory.mktemp("sts") / "sts.json"
    write_temperatures(scaling, path)
    assert read_temperatures(path) == scaling


def test_the_file_has_the_keys_of_sglang(tmp_path):
    scaling = SequentialTemperatureScaling((1.5, 2.0), "alpaca", 12, (0.1, 0.2), (0.0, 0.1))
    write_temperatures(scaling, tmp_path / "sts.json")
    assert json.loads((tmp_path / "sts.json").read_text(encoding="utf-8")) == {
        "temperatures": [1.5, 2.0],
        "dataset": "alpaca",
        "num_samples": 12,
        "ece_before": [0.1, 0.2],
        "ece_after": [0.0, 0.1],
    }


def test_temperatures_alone_are_a_file(tmp_path):
    (tmp_path / "sts.json").write_text('{"temperatures": [1, 2.5]}', encoding="utf-8")
    assert read_temperatures(tmp_path / "sts.json") == SequentialTemperatureScaling((1.0, 2.5))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[1.0]", r"must be a JSON object, got \[1.0\]"),
        ("{}", "key 'temperatures' is missing"),
        ('{"temperature": [1]}', "did you mean 'temperatures'"),
        ('{"temperatures": 1.5}', "temperatures must be a list of positive numbers, got 1.5"),
        ('{"temperatures": []}', "one positive number or more"),
        ('{"temperatures": [1, 0]}', r"temperatures\[1\] must be .*, got 0"),
        ('{"temperatures": [NaN]}', r"temperatures\[0\] must be .*, got NaN"),
        ('{"temperatures": [Infinity]}', "got Infinity"),
        ('{"temperatures": [true]}', "got true"),
        ('{"temperatures": ["1"]}', 'got "1"'),
        (f'{{"temperatures": [1{"0" * 400}]}}', r"temperatures\[0\] must be"),
        ('{"temperatures": [1], "ece_before": [1, 1]}', "ece_before has 2 numbers, but there are"),
        ('{"temperatures": [1], "ece_after": [1.5]}', r"ece_after\[0\] must be .* 0..1, got 1.5"),
        ('{"temperatures": [1], "ece_after": null}', "ece_after must be a list .*, got null"),
        ('{"temperatures": [1], "dataset": 3}', "dataset must be text, got 3"),
        ('{"temperatures": [1], "num_samples": 1.5}', "num_samples must be a whole number"),
        ('{"temperatures": [1], "num_samples": -1}', "got -1"),
    ],
)
def test_a_malformed_file_is_told_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "sts.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=sentence) as error:
        read_temperatures(path)
    assert str(error.value).startswith(f"{path}: ") or f" in {path}: " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_temperatures(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no JSON"):
        read_temperatures(tmp_path / "bytes.json")
