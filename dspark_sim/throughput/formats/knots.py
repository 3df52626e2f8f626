"""Dense costs as few points, from which another rule reads the same cost at every size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Sizes = NDArray[np.int64]

_EXACT = 1e-13


def linear_knots(sizes: Sizes, ms: Floats, tolerance: float = _EXACT) -> tuple[Sizes, Floats]:
    """Return the points between which straight lines pass through every cost.

    Parameters
    ----------
    sizes : int array (n,)
        Consecutive whole numbers.
    ms : array (n,)
        Their costs.
    tolerance : float
        Bends below this share of the largest cost are rounding.
    """
    bend = np.abs(np.diff(ms, 2)) > tolerance * np.abs(ms).max()
    keep = np.concatenate([[True], bend, [True]]) if len(ms) > 1 else np.array([True])
    return sizes[keep], ms[keep]


def floor_knots(sizes: Sizes, ms: Floats, exact: NDArray[np.bool_]) -> tuple[Sizes, Floats]:
    """Return the points whose cost holds until the next: SGLang's floor probes.

    Where the cost is a staircase (`exact`) every step begins with a point; elsewhere one is set as
    soon as the cost has moved by 0.5 %.
    """
    keep = [0]
    for index in range(1, len(ms)):
        moved = abs(ms[index] - ms[keep[-1]])
        if moved > (0.0 if exact[index] else 5e-3 * ms[keep[-1]]):
            keep.append(index)
    return sizes[keep], ms[keep]


def captured_knots(sizes: Sizes, ms: Floats) -> tuple[Sizes, Floats]:
    """Return the last point of every run of equal costs: the next one up holds (vLLM)."""
    last = np.append(np.diff(ms) != 0, True)
    return sizes[last], ms[last]


def from_one(sizes: Sizes, ms: Floats) -> tuple[Sizes, Floats]:
    """Return interpolated points that begin at size 1 or later: a point at 0 moves up to 1."""
    if sizes[0] > 0:
        return sizes, ms
    first = float(np.interp(1, sizes, ms))
    if len(sizes) > 1 and sizes[1] == 1:
        return sizes[1:], ms[1:]
    return np.append(1, sizes[1:]), np.append(first, ms[1:])


def held(sizes: Sizes, ms: Floats, last: int) -> tuple[Sizes, Floats]:
    """Return the points with their ends held: a lookup that clamps, from size 1 up to `last`."""
    if sizes[0] > 1:
        sizes, ms = np.append(1, sizes), np.append(ms[0], ms)
    if last > sizes[-1]:
        sizes, ms = np.append(sizes, last), np.append(ms, ms[-1])
    return sizes, ms
