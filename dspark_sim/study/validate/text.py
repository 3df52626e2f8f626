"""A validation as text: what was fitted, every prediction with its error, and the bounds."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pandas as pd

from dspark_sim.study.validate.case import max_error, mean_error

if TYPE_CHECKING:
    from dspark_sim.study.validate.case import Point, Validation

_WIDTH = 100


def format_validation(found: Validation) -> str:
    """Return one case as text."""
    head = f"{found.case}  {found.title}"
    if found.skipped:
        return f"{head}\nskipped: {found.skipped}\n"
    left = found.fit_points - found.parameters
    fitted = f"fitted: {found.fitted}"
    if found.fit_points:
        fitted += (
            f" ({found.fit_points} numbers, {found.parameters:.3g} parameters, "
            f"{left:.3g} degrees of freedom)"
        )
    lines = [head, *_wrapped(fitted)]
    lines += [line for text in found.by_hand for line in _wrapped(f"by hand: {text}")]
    known = [point for point in found.points if point.fitted]
    if known:
        lines.append(f"fitted points: {_errors(known)}")
    lines += [f"predicted points: {_errors(found.predicted)}", _table(found)]
    lines += [_check(check.what, check.value, check.bound, check.unit) for check in found.checks]
    lines += [line for text in found.notes for line in _wrapped(f"note: {text}")]
    return "\n".join(lines) + "\n"


def accuracy_table(outcomes: list[Validation]) -> pd.DataFrame:
    """Return one row per case: title, points, mean and largest error in %, within bounds."""
    rows = [
        (
            found.case,
            found.title,
            len(found.predicted),
            mean_error(found.predicted),
            max_error(found.predicted),
            {None: "skipped", True: "yes", False: "no"}[found.within_bounds],
        )
        for found in outcomes
    ]
    names = ["case", "what is predicted", "points", "mean error %", "max error %", "within bounds"]
    return pd.DataFrame(rows, columns=names)


def _errors(points: list[Point] | tuple[Point, ...]) -> str:
    if not points:
        return "none"
    return (
        f"{len(points)}, error mean {mean_error(points):.1f} %, largest {max_error(points):.1f} %"
    )


def _table(found: Validation) -> str:
    points = found.predicted
    table = pd.DataFrame(
        {
            "": [point.series for point in points],
            "what": [point.quantity for point in points],
            "at": [f"{found.axis(p.quantity).partition(' (')[0]} {p.at:g}" for p in points],
            "published": [f"{point.published:,.4g}" for point in points],
            "predicted": [f"{point.predicted:,.4g}" for point in points],
            "error %": [f"{point.error_pct:+.1f}" for point in points],
        }
    )
    if any(point.low == point.low for point in points):
        table["band"] = [
            f"{point.low:,.4g} to {point.high:,.4g}" if point.low == point.low else "-"
            for point in points
        ]
    return str(table.to_string(index=False))


def _check(what: str, value: float, bound: float, unit: str) -> str:
    met = "met" if value <= bound else "NOT MET"
    return f"bound {met}: {what} {value:.3g} {unit} (at most {bound:g} {unit})"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ")
