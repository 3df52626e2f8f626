import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim import UserError
from dspark_sim.study.race import Race


def course(truth, noise, seed=0, shared=5.0):
    """Objectives with luck that all values share and some of their own."""
    rng = np.random.default_rng(seed)
    common = shared * rng.standard_normal(64)
    own = noise * rng.standard_normal((len(truth), 64))

    def measure(wanted):
        return [truth[place] + common[s] + own[place, s] for place, s in wanted]

    return measure


def hill(count, top, height=100.0, fall=1.0):
    return [height - fall * (place - top) ** 2 for place in range(count)]


@settings(max_examples=60, deadline=None)
@given(st.integers(9, 25), st.data())
def test_the_optimum_of_the_grid_lies_in_the_interval(count, data):
    top = data.draw(st.integers(0, count - 1))
    measure = course(hill(count, top, fall=0.3), 0.3, data.draw(st.integers(0, 999)))
    race, grid = (Race(count, measure, 8, 0.005) for _ in range(2))
    race.run()
    grid.run_all()
    low, high = race.interval()
    loss = grid.loss(race.best(), grid.best())[0]
    assert low <= grid.best() <= high or loss < 0.005 * 100
    assert race.taken < grid.taken


@pytest.mark.parametrize("count", [15, 20, 25])
@pytest.mark.parametrize("top", [0, 7, 13])
def test_it_costs_less_than_a_third_of_the_grid(count, top):
    spent = []
    for seed in range(20):
        race = Race(count, course(hill(count, top, fall=0.3), 0.1, seed), 8, 0.005)
        race.run()
        spent.append(race.taken)
        low, high = race.interval()
        assert low <= top <= high
    assert max(spent) <= count * 8 / 3


def test_a_clear_winner_costs_two_seeds_a_value():
    race = Race(17, course(hill(17, 6, fall=10.0), 0.01), 8, 0.005)
    race.run()
    assert race.best() == 6
    assert race.interval() == (6, 6)
    assert all(len(values) == 2 for values in race.samples.values())
    assert race.taken <= 24


def test_seeds_go_where_the_answer_is_undecided():
    truth = [50.0] * 4 + [100.0, 100.4] + [50.0] * 4
    race = Race(10, course(truth, 0.6, seed=3), 16, 0.001)
    race.run()
    seeds = {place: len(values) for place, values in race.samples.items()}
    assert min(seeds[4], seeds[5]) > 2
    assert all(seeds.get(place, 2) == 2 for place in (0, 3, 6, 9))


def test_values_that_are_level_stay_in_without_more_seeds():
    race = Race(3, course([100.0, 100.01, 100.0], 0.01), 8, 0.01)
    race.run()
    assert race.interval() == (0, 2)
    assert race.taken == 6


def test_values_without_luck_are_decided_at_once():
    race = Race(5, lambda wanted: [float(-abs(place - 3)) for place, _ in wanted], 8, 0.0)
    race.run()
    assert (race.best(), race.interval()) == (3, (3, 3))
    assert race.mean(3) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((1, 8, 0.1), "two values"), ((5, 1, 0.1), "2 seeds"), ((5, 8, 1.0), "tolerance")],
)
def test_a_race_that_cannot_be_is_refused(arguments, words):
    count, most, tolerance = arguments
    with pytest.raises(UserError, match=words):
        Race(count, lambda wanted: [0.0 for _ in wanted], most, tolerance)
