"""Between which values a normal number and a logit lie, looked up by where in (0, 1) they began.

An outcome is ``u < sigmoid(base + sd * z)``, with u uniform and z the normal quantile of a second
uniform number. With (0, 1) in equal bins, the bins of the two nearly always tell it, at a tenth of
what the exact comparison costs.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 1024
SLACK = 1e-6  # on the logit: more than rounding can move either side


def normal_brackets() -> NDArray[np.float64]:
    """Return the normal quantile at the edges of the bins (BINS + 1,), infinite at the ends."""
    inside = [NormalDist().inv_cdf(edge / BINS) for edge in range(1, BINS)]
    return np.array([-math.inf, *inside, math.inf])


def logit_brackets() -> NDArray[np.float64]:
    """Return the logit at the edges of the bins (BINS + 1,), infinite at the ends."""
    edges = np.arange(1, BINS) / BINS
    return np.array([-math.inf, *np.log(edges / (1.0 - edges)), math.inf])
