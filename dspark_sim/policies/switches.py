"""Switches that change any rule they mean something for, read from a spec's keywords."""

from __future__ import annotations

from dataclasses import dataclass

MEANINGS = {
    "min": "is the least that trimming leaves of a draft",
    "fill": "spends a captured size's padding on trimmed drafts",
    "lag": "is the age of the survivals behind a budget",
    "guard": "weighs a budget against verifying everything",
    "tie": "chooses between equally good budgets",
    "every": "keeps a budget for some steps",
}
TRIMMING = ("min", "fill")
BUDGET = ("lag", "guard", "tie", "every", *TRIMMING)

LEAST, GUARD, FILL, MOST, EVERY = range(5)


@dataclass(frozen=True)
class Switches:
    """How a rule is changed.

    Attributes
    ----------
    least : int
        Tokens of every draft that are verified whatever the rule says.
    guard : float or None
        A budget must promise a rate this much above that of verifying everything (0.01: 1 %),
        else everything is verified. None: no guard.
    fill : bool
        Spend what is left of the captured size on the best of the trimmed drafts.
    most : bool
        Among equally good budgets take the largest, not the smallest.
    every : int
        Steps for which a budget is kept.
    """

    least: int = 0
    guard: float | None = None
    fill: bool = False
    most: bool = False
    every: int = 1

    def packed(self) -> tuple[float, ...]:
        """Return the switches as the kernels read them."""
        guard = -1.0 if self.guard is None else self.guard
        return float(self.least), guard, float(self.fill), float(self.most), float(self.every)


AS_IS = Switches()
