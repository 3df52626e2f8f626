from math import isnan

import pytest

from dspark_sim import UserError
from dspark_sim.study import parse_objective

RUNS = [
    {"tok_s_user": 100.0, "tok_s_gpu": 10.0, "request_goodput": 3.0},
    {"tok_s_user": 50.0, "tok_s_gpu": 30.0, "request_goodput": 2.0},
    {"tok_s_user": 40.0, "tok_s_gpu": 20.0, "request_goodput": 1.0},
]


def test_one_load_is_its_throughput_or_goodput():
    assert parse_objective("throughput").value(RUNS[:1]) == 10.0
    assert parse_objective("goodput").value(RUNS[:1]) == 3.0
    assert not parse_objective("goodput").whole


@pytest.mark.parametrize(("floor", "value"), [(75, 20.0), (100, 10.0), (20, 30.0), (101, 0.0)])
def test_throughput_at_a_floor_is_read_on_the_frontier(floor, value):
    objective = parse_objective(f"throughput-at:{floor}")
    assert objective.whole
    assert objective.value(RUNS) == pytest.approx(value)


def test_the_area_is_that_under_the_frontier():
    assert parse_objective("area").value(RUNS) == pytest.approx(50 * 30 + 50 * 20)
    assert isnan(parse_objective("area").floor)


@pytest.mark.parametrize(
    "text", ["speed", "throughput:80", "throughput-at", "area:1,2", "throughput-at:x"]
)
def test_an_objective_that_cannot_be_is_refused(text):
    with pytest.raises(UserError, match="objective"):
        parse_objective(text)
