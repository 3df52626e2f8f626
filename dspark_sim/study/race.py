"""A race between the values of a parameter: simulations go where the answer is undecided."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.study.seeds import t_quantile
from dspark_sim.study.slo import mean_and_half_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Measure = Callable[[Sequence[tuple[int, int]]], Sequence[float]]
    """From (value's index, seed) to the objective, larger is better."""

LEAST = 2  # seeds of a value that is looked at


@dataclass
class Race:
    """Finds the best of some ordered values by paired comparisons with sequential stopping.

    Every few values are looked at with two seeds, then those between the ones that are still in,
    ever closer. A value is *out* if its loss against the best, paired by seed, is surely above 0
    (one-sided 95 % t) and on average above the tolerance; it is *level* if its loss is surely below
    the tolerance. Values that are neither get a further seed each, and the best with them, until
    there are none or seeds run out. That near values have near objectives is taken for granted.

    Parameters
    ----------
    count : int
        Number of values.
    measure
    most : int
        Most seeds per value.
    tolerance : float
        Loss that does not matter, as a share of the best objective.
    """

    count: int
    measure: Measure
    most: int
    tolerance: float
    samples: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 2:
            raise UserError("tuning needs at least two values of the parameter")
        if self.most < LEAST:
            raise UserError(f"tuning needs at least {LEAST} seeds, got {self.most}")
        if not 0 <= self.tolerance < 1:
            raise UserError(f"tolerance must lie in 0..1, got {self.tolerance:g}")

    def run(self) -> None:
        """Race until every value is decided."""
        stride = max(1, round(sqrt(self.count)))
        self._look_at([*range(0, self.count, stride), self.count - 1])
        while stride > 1:
            stride = ceil(stride / 2)
            self._look_beside(stride)
        while self._look_beside(1):
            pass
        while open_ := self._undecided():
            self._more([*open_, self.best()])

    def run_all(self) -> None:
        """Measure every value with every seed."""
        self._take([(place, seed) for place in range(self.count) for seed in range(self.most)])

    @property
    def taken(self) -> int:
        """Measurements so far."""
        return sum(map(len, self.samples.values()))

    def best(self) -> int:
        """Return the value with the largest mean."""
        return max(sorted(self.samples), key=lambda place: float(np.mean(self.samples[place])))

    def still_in(self) -> list[int]:
        """Return the values that are not out, the best among them."""
        best = self.best()
        return [place for place in sorted(self.samples) if not self._out(place, best)]

    def loss(self, place: int, best: int) -> tuple[float, float, int]:
        """Return a value's mean loss against another, its standard error, and seeds in common."""
        pairs = zip(self.samples[best], self.samples[place], strict=False)
        lost = np.array([a - b for a, b in pairs])
        return float(lost.mean()), float(lost.std(ddof=1) / sqrt(len(lost))), len(lost)

    def _out(self, place: int, best: int) -> bool:
        if place == best:
            return False
        mean, error, seeds = self.loss(place, best)
        bound = float(t_quantile(seeds - 1.0, 0.95))
        return mean - bound * error > 0 and mean > self.tolerance * self._scale(best)

    def _undecided(self) -> list[int]:
        best = self.best()
        found = []
        for place in self.still_in():
            mean, error, seeds = self.loss(place, best)
            bound = float(t_quantile(seeds - 1.0, 0.95))
            level = mean + bound * error <= self.tolerance * self._scale(best)
            if place != best and not level and len(self.samples[place]) < self.most:
                found.append(place)
        return found

    def _scale(self, best: int) -> float:
        return abs(float(np.mean(self.samples[best])))

    def interval(self) -> tuple[int, int]:
        """Return the lowest and the highest value that are not out."""
        inside = self.still_in()
        return inside[0], inside[-1]

    def mean(self, place: int) -> tuple[float, float]:
        """Return a value's mean objective and the half width of its 95 % t interval."""
        values = self.samples[place]
        return mean_and_half_width(values) if len(values) > 1 else (values[0], inf)

    def _look_beside(self, stride: int) -> bool:
        """Look at what lies beside the values that are still in; return whether there was any."""
        inside = self.still_in()
        return self._look_at([place + step for place in inside for step in (-stride, stride)])

    def _look_at(self, places: Sequence[int]) -> bool:
        fresh = {place for place in places if 0 <= place < self.count and place not in self.samples}
        self._take([(place, seed) for place in sorted(fresh) for seed in range(LEAST)])
        return bool(fresh)

    def _more(self, places: Sequence[int]) -> None:
        """Give each value one seed more, so that the shortest have as many as the longest."""
        target = min(self.most, min(len(self.samples[place]) for place in places) + 1)
        self._take(
            [
                (place, seed)
                for place in sorted(set(places))
                for seed in range(len(self.samples[place]), target)
            ]
        )

    def _take(self, wanted: Sequence[tuple[int, int]]) -> None:
        for (place, _), value in zip(wanted, self.measure(wanted), strict=True):
            self.samples.setdefault(place, []).append(value)
