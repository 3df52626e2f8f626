"""Exponential and logarithm as plain arithmetic, so that loops over them run several abreast.

A call into the C library keeps a loop scalar. Both are within two units in the last place, and the
same bits however wide the processor's registers.
"""

from __future__ import annotations

import numpy as np

from dspark_sim.jit import kernel_inlined

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_MANTISSA_BITS, _EXPONENT_BIAS = 52, 1023
_HALF_ROOT_BITS = 0x3FE6A09E667F3BCD  # of the square root of one half

# Of (log((1 + s) / (1 - s)) - 2 s) / s over s² for s² <= 0.0295 (minimax, FreeBSD's msun e_log.c).
_L = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)


@kernel_inlined
def exponential(x: float) -> float:
    """Return e to the power `x`, |x| <= 700: 2^n times the Taylor series of what is left."""
    n = np.rint(x * _LOG2_E)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = 1.0 / 479001600
    p = p * r + 1.0 / 39916800
    p = p * r + 1.0 / 3628800
    p = p * r + 1.0 / 362880
    p = p * r + 1.0 / 40320
    p = p * r + 1.0 / 5040
    p = p * r + 1.0 / 720
    p = p * r + 1.0 / 120
    p = p * r + 1.0 / 24
    p = p * r + 1.0 / 6
    p = p * r + 0.5
    p = p * r * r + r + 1.0
    return p * np.int64((np.int64(n) + _EXPONENT_BIAS) << _MANTISSA_BITS).view(np.float64)


@kernel_inlined
def logarithm(x: float) -> float:
    """Return the natural logarithm of a normal number `x` > 0."""
    bits = np.float64(x).view(np.int64)
    n = (bits - _HALF_ROOT_BITS) >> _MANTISSA_BITS
    f = np.int64(bits - (n << _MANTISSA_BITS)).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    high = ((_L[0] * z + _L[1]) * z + _L[2]) * z + _L[3]
    rest = (((high * z + _L[4]) * z + _L[5]) * z + _L[6]) * z
    half, power = 0.5 * f * f, np.float64(n)
    return power * _LN2_HIGH - ((half - (s * (half + rest) + power * _LN2_LOW)) - f)
