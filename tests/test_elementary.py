"""Exponential and logarithm as arithmetic are those of the C library, to the last bits."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from dspark_sim.acceptance.elementary import exponential, logarithm

LAST_PLACES = 2


@given(st.floats(-700.0, 700.0))
@example(0.0)
@example(-0.5 * math.log(2.0))
def test_exponential(x):
    exact = math.exp(x)
    assert abs(exponential(x) - exact) <= LAST_PLACES * math.ulp(exact)


@given(st.floats(2.0**-1022, allow_infinity=False))
@example(1.0)
@example(math.nextafter(1.0, 0.0))
@example(math.sqrt(0.5))
@example(2.0**-53)
def test_logarithm(x):
    exact = math.log(x)
    assert abs(logarithm(x) - exact) <= LAST_PLACES * math.ulp(exact)
