import numpy as np
import pandas as pd
import pytest

from dspark_sim import UserError
from dspark_sim.study import Slo
from dspark_sim.study.slo import mean_and_half_width


def runs(*values):
    return [{"ttft_p95_ms": value, "tpot_p95_ms": 5.0} for value in values]


def test_a_limit_is_met_violated_or_undecided_by_its_interval():
    slo = Slo({"ttft": 100, "tpot": 10})
    assert slo.verdict(runs(80, 81, 79)) == "met"
    assert slo.verdict(runs(120, 121, 119)) == "violated"
    assert slo.verdict(runs(90, 105, 99)) == "undecided"
    assert slo.verdict(runs(80)) == "undecided"


def test_one_violated_limit_is_enough():
    slo = Slo({"ttft": 100, "tpot": 4})
    assert slo.verdict(runs(80, 81, 79)) == "violated"
    assert slo.worst({"ttft": 80, "tpot": 5}) == ("tpot", 1.25)


def test_requests_of_one_token_keep_any_tpot():
    slo = Slo({"tpot": 10})
    values = slo.values_of(pd.DataFrame({"tpot_ms": [np.nan, np.nan]}))
    assert np.isnan(values["tpot"])
    assert slo.verdict([{"tpot_p95_ms": np.nan}] * 2) == "met"
    assert not slo.worst(values)[1] > 1


def test_the_interval_is_students():
    mean, half = mean_and_half_width([1.0, 2.0, 3.0])
    assert (mean, half) == pytest.approx((2.0, 4.302652729911275 / np.sqrt(3)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({},), "no SLO is given"),
        (({"itl": 5},), "unknown metric 'itl'"),
        (({"ttft": 0},), "ttft must be positive"),
        (({"ttft": 5}, 80), "percentile must be one of 50, 90, 95, 99"),
    ],
)
def test_an_slo_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        Slo(*arguments)
