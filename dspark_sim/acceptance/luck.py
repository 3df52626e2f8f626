"""The luck of a request: random numbers that depend on where a token stands, never on call order.

Every number is a hash of (seed, request, output position, stream), the splitmix64 generator read
at a counter. Two policies that test the same position of the same request therefore see the same
luck (common random numbers), and results do not depend on worker count or code path.
"""

from __future__ import annotations

import math

import numpy as np

from dspark_sim.acceptance.elementary import logarithm
from dspark_sim.jit import kernel, kernel_inlined

ACCEPT = np.uint64(0)
DIFFICULTY = np.uint64(1)
NOISE = np.uint64(2)
RESPONSE = np.uint64(3)
_STREAMS = np.uint64(4)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12)
_ULP = 2.0**-52  # 52 bits and a half are exact, so that 1 is never reached

# Wichura 1988, AS 241: numerators and denominators, highest power first.
_CENTRE_TOP = (
    2.5090809287301226727e3,
    3.3430575583588128105e4,
    6.7265770927008700853e4,
    4.5921953931549871457e4,
    1.3731693765509461125e4,
    1.9715909503065514427e3,
    1.3314166789178437745e2,
    3.3871328727963666080e0,
)
_CENTRE_BOTTOM = (
    5.2264952788528545610e3,
    2.8729085735721942674e4,
    3.9307895800092710610e4,
    2.1213794301586595867e4,
    5.3941960214247511077e3,
    6.8718700749205790830e2,
    4.2313330701600911252e1,
    1.0,
)
_TAIL_TOP = (
    7.74545014278341407640e-4,
    2.27238449892691845833e-2,
    2.41780725177450611770e-1,
    1.27045825245236838258e0,
    3.64784832476320460504e0,
    5.76949722146069140550e0,
    4.63033784615654529590e0,
    1.42343711074968357734e0,
)
_TAIL_BOTTOM = (
    1.05075007164441684324e-9,
    5.47593808499534494600e-4,
    1.51986665636164571966e-2,
    1.48103976427480074590e-1,
    6.89767334985100004550e-1,
    1.67638483018380384940e0,
    2.05319162663775882187e0,
    1.0,
)
_FAR_TOP = (
    2.01033439929228813265e-7,
    2.71155556874348757815e-5,
    1.24266094738807843860e-3,
    2.65321895265761230930e-2,
    2.96560571828504891230e-1,
    1.78482653991729133580e0,
    5.46378491116411436990e0,
    6.65790464350110377720e0,
)
_FAR_BOTTOM = (
    2.04426310338993978564e-15,
    1.42151175831644588870e-7,
    1.84631831751005468180e-5,
    7.86869131145613259100e-4,
    1.48753612908506148525e-2,
    1.36929880922735805310e-1,
    5.99832206555887937690e-1,
    1.0,
)


@kernel_inlined
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@kernel
def request_key(seed: int, request: int) -> np.uint64:
    """Return the key that all luck of one request hangs on."""
    return _mix(_mix(np.uint64(seed) + _GOLDEN) + (np.uint64(request) + np.uint64(1)) * _GOLDEN)


@kernel_inlined
def uniform(key: np.uint64, position: int, stream: np.uint64) -> float:
    """Return a uniform number in (0, 1) for an output position of the request behind `key`."""
    counter = np.uint64(position) * _STREAMS + stream + np.uint64(1)
    return (np.float64(_mix(key + counter * _GOLDEN) >> _S12) + 0.5) * _ULP


@kernel_inlined
def normal(key: np.uint64, position: int, stream: np.uint64) -> float:
    """Return a standard normal number for an output position (inverse of the distribution)."""
    return normal_quantile(uniform(key, position, stream))


@kernel_inlined
def _polynomial(x: float, coefficients: tuple[float, ...]) -> float:
    c = coefficients  # written out: a loop over a tuple is not unrolled
    high = ((c[0] * x + c[1]) * x + c[2]) * x + c[3]
    return (((high * x + c[4]) * x + c[5]) * x + c[6]) * x + c[7]


@kernel_inlined
def normal_quantile(p: float) -> float:
    """Return the standard normal quantile of `p`, to 1e-15 (Wichura 1988, AS 241, PPND16).

    All three of its ranges are computed and one is chosen: a loop without branches runs several
    abreast.
    """
    q = p - 0.5
    r = 0.180625 - q * q
    centre = q * _polynomial(r, _CENTRE_TOP) / _polynomial(r, _CENTRE_BOTTOM)
    r = math.sqrt(-logarithm(min(p, 1.0 - p)))
    near = r <= 5.0
    r -= 1.6 if near else 5.0
    top = _polynomial(r, _TAIL_TOP if near else _FAR_TOP)
    tail = top / _polynomial(r, _TAIL_BOTTOM if near else _FAR_BOTTOM)
    return centre if abs(q) <= 0.425 else math.copysign(tail, q)
