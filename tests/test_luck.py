import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from scipy import special, stats

from dspark_sim.acceptance.luck import (
    ACCEPT,
    DIFFICULTY,
    NOISE,
    RESPONSE,
    normal,
    normal_quantile,
    request_key,
    uniform,
)

STREAMS = (ACCEPT, DIFFICULTY, NOISE, RESPONSE)
MANY = np.arange(40_000)
ONE = np.array([17])
LEAST_P = 1e-4
MASK = 2**64 - 1


@njit
def luck(seeds, requests, positions, streams):
    drawn = np.empty(len(seeds))
    for i in range(len(seeds)):
        drawn[i] = uniform(request_key(seeds[i], requests[i]), positions[i], streams[i])
    return drawn


@njit
def key_of(seed, request):
    return np.array([request_key(seed, request)])


@njit
def normals(count):
    key = request_key(0, 0)
    return np.array([normal(key, position, DIFFICULTY) for position in range(count)])


@njit
def luck_of_key(key, counts):
    return np.array([uniform(key, c // 4, np.uint64(c % 4)) for c in counts])


def draw(seed=ONE, request=ONE, position=ONE, stream=ONE * 0):
    arrays = np.broadcast_arrays(seed, request, position, np.asarray(stream, dtype=np.uint64))
    return luck(*(np.ascontiguousarray(array) for array in arrays))


ALONG = {
    "positions": lambda: draw(position=MANY),
    "requests": lambda: draw(request=MANY),
    "seeds": lambda: draw(seed=MANY),
    "streams": lambda: draw(position=MANY // 4, stream=MANY % 4),
}


@pytest.mark.parametrize("along", ALONG)
def test_luck_is_uniform_along(along):
    assert stats.kstest(ALONG[along](), "uniform").pvalue > LEAST_P


@pytest.mark.parametrize("stream", STREAMS)
def test_every_stream_is_uniform(stream):
    assert stats.kstest(draw(position=MANY, stream=stream), "uniform").pvalue > LEAST_P


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("distance", [1, 2, 7, 8])
def test_neighbours_are_independent_along(along, distance):
    drawn = ALONG[along]()
    cells = (drawn * 16).astype(int)
    pairs = np.bincount(cells[:-distance] * 16 + cells[distance:], minlength=256)
    assert stats.chisquare(pairs).pvalue > LEAST_P


def test_streams_of_one_position_are_independent():
    drawn = np.array([draw(position=MANY, stream=stream) for stream in STREAMS])
    correlation = np.corrcoef(drawn) - np.eye(len(STREAMS))
    assert np.abs(correlation).max() < 4 / np.sqrt(len(MANY))


def test_the_same_position_of_two_requests_or_seeds_is_independent():
    base = draw(position=MANY)
    for other in (draw(request=np.array([18]), position=MANY), draw(np.array([18]), position=MANY)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(len(MANY))


def test_requests_and_seeds_do_not_share_keys():
    keys = np.concatenate([key_of(seed, request) for seed in range(60) for request in range(60)])
    assert len(np.unique(keys)) == 3_600


@given(st.lists(st.tuples(*[st.integers(0, 10**6)] * 3, st.integers(0, 3)), min_size=1))
def test_luck_depends_only_on_seed_request_position_and_stream(places):
    together = draw(*np.array(places).T)
    alone = [draw(*np.array([place]).T)[0] for place in reversed(places)]
    assert together.tolist() == alone[::-1]


def test_a_negative_position_has_luck_of_its_own():
    assert draw(position=np.array([-1]), stream=DIFFICULTY) != draw(stream=DIFFICULTY)
    assert 0 < draw(position=np.array([-1]), stream=DIFFICULTY)[0] < 1


def test_the_generator_is_splitmix64_read_at_a_counter():
    # Published outputs of splitmix64 from state 1234567 (Vigna's reference code).
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    drawn = luck_of_key(np.uint64(1234567), np.arange(4))
    assert drawn.tolist() == pytest.approx([x / 2**64 for x in published], abs=2**-52)


def unmixed(value):
    """Invert splitmix64's finaliser."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        whole = value
        for _ in range(3):
            value = whole ^ (value >> shift)
        value = value * pow(factor, -1, 2**64) & MASK
    return value


@pytest.mark.parametrize("hashed", [0, 1, 2**63, MASK - 1, MASK])
def test_luck_lies_strictly_between_0_and_1(hashed):
    key = np.uint64(unmixed(hashed) - 0x9E3779B97F4A7C15 & MASK)
    assert 0.0 < luck_of_key(key, np.arange(1))[0] < 1.0


@given(st.floats(1e-300, 1 - 2**-53))
def test_the_normal_quantile_agrees_with_scipy(p):
    assert normal_quantile(p) == pytest.approx(special.ndtri(p), rel=1e-13, abs=1e-15)


def test_the_normal_quantile_is_odd_about_one_half():
    assert normal_quantile(0.5) == 0.0
    assert normal_quantile(0.25) == -normal_quantile(0.75)


def test_normal_luck_is_standard_normal():
    drawn = normals(40_000)
    assert stats.kstest(drawn, "norm").pvalue > LEAST_P
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / np.sqrt(len(drawn))
