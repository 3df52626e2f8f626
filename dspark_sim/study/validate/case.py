"""What a validation case returns: points, the bounds they must meet, and what was fitted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isnan, nan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_WORDS = ("series", "quantity", "fitted")


@dataclass(frozen=True)
class Settings:
    """How a case is run.

    Attributes
    ----------
    quick : bool
        Fewer requests and points: seconds instead of minutes.
    data : Path, optional
        Folder of SpecDecode-Bench's files, for the case that needs them.
    trial : Path, optional
        Folder of a trial of the real engine, in place of the shipped ones.
    """

    quick: bool = False
    data: Path | None = None
    trial: Path | None = None


@dataclass(frozen=True)
class Point:
    """One published number beside what the simulator says.

    Attributes
    ----------
    series : str
        Policy, domain or method.
    quantity : str
        What is compared, as in the simulator's metrics.
    at : float
        Where: concurrency, threshold, position.
    published, predicted : float
    low, high : float
        A band of the prediction, NaN without one.
    fitted : bool
        Whether the published number was fitted; it then counts in no error.
    of : float
        What errors are a share of; NaN: of the published number itself.
    """

    series: str
    quantity: str
    at: float
    published: float
    predicted: float
    low: float = nan
    high: float = nan
    fitted: bool = False
    of: float = nan

    @property
    def error_pct(self) -> float:
        """100 · (predicted − published) / of."""
        whole = self.published if isnan(self.of) else self.of
        return 100.0 * (self.predicted - self.published) / whole


@dataclass(frozen=True)
class Check:
    """One bound that was set beforehand: `value` may not exceed `bound`."""

    what: str
    value: float
    bound: float
    unit: str = "%"

    @property
    def met(self) -> bool:
        """Whether the bound holds; a value that is no number does not."""
        return bool(self.value <= self.bound)


@dataclass(frozen=True)
class Validation:
    """The outcome of one case.

    Attributes
    ----------
    case, title : str
    fitted : str
        What was fitted, and to which published numbers.
    fit_points, parameters : float
        How many numbers were fitted, with how many free parameters; the difference is the degrees
        of freedom of the fit.
    by_hand : tuple of str
        What was fixed by hand, one sentence each.
    at : str
        What `Point.at` is, and by quantity, where it is something else, `axes`.
    points, checks : tuple
    notes : tuple of str
        What a reader has to know; where a bound is not met, which term is missing.
    skipped : str
        Why the case did not run; empty if it did.
    """

    case: str
    title: str
    fitted: str = "nothing"
    fit_points: int = 0
    parameters: float = 0.0
    by_hand: tuple[str, ...] = ()
    at: str = "concurrency"
    axes: Mapping[str, str] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""

    def axis(self, quantity: str) -> str:
        """Return what `Point.at` is for a quantity."""
        return self.axes.get(quantity, self.at)

    @property
    def predicted(self) -> tuple[Point, ...]:
        """The points that were not fitted."""
        return tuple(point for point in self.points if not point.fitted)

    @property
    def within_bounds(self) -> bool | None:
        """Whether every bound is met; None where the case did not run."""
        return None if self.skipped else all(check.met for check in self.checks)

    def summary(self) -> dict[str, Any]:
        """Return the case as plain values for JSON; errors in % of the published values."""
        return {
            "case": self.case,
            "title": self.title,
            "skipped": self.skipped or None,
            "within_bounds": self.within_bounds,
            "mean_abs_error": mean_error(self.predicted),
            "max_abs_error": max_error(self.predicted),
            "error_unit": "%",
            "fitted": self.fitted,
            "fit_points": self.fit_points,
            "parameters": self.parameters,
            "degrees_of_freedom": self.fit_points - self.parameters,
            "fixed_by_hand": list(self.by_hand),
            "checks": [
                {**asdict(check), "value": float(check.value), "met": check.met}
                for check in self.checks
            ],
            "notes": list(self.notes),
            "points": [_plain(point, self.axis(point.quantity)) for point in self.points],
        }


def mean_error(points: Iterable[Point]) -> float | None:
    """Return the mean absolute error in %, None without points."""
    errors = [abs(point.error_pct) for point in points]
    return sum(errors) / len(errors) if errors else None


def max_error(points: Iterable[Point]) -> float | None:
    """Return the largest absolute error in %, None without points."""
    return max((abs(point.error_pct) for point in points), default=None)


def errors_within(
    what: str, points: Iterable[Point], mean: float | None, largest: float
) -> list[Check]:
    """Return the checks of a mean (if one is set) and a largest absolute error in %."""
    kept = tuple(points)
    checks = [Check(f"{what}: largest error", max_error(kept) or 0.0, largest)]
    if mean is not None:
        checks.insert(0, Check(f"{what}: mean error", mean_error(kept) or 0.0, mean))
    return checks


def _plain(point: Point, at: str) -> dict[str, Any]:
    row = {k: _number(v) if k not in _WORDS else v for k, v in asdict(point).items()}
    row["at"] = {"name": at, "value": point.at}
    return {**row, "error_pct": float(point.error_pct)}


def _number(value: float) -> float | None:
    return None if isnan(value) else float(value)
