"""Pictures of a validation: published against predicted, one panel per quantity, errors below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.policies import POLICIES
from dspark_sim.study.figure import finish, house_figure, legend, mark_values, write_figure
from dspark_sim.study.style import COLOURS, MARKERS, PolicyStyle, policy_styles

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dspark_sim.study.validate.case import Point, Validation

LABELS = {
    "tok_s_user": "Interactivity (tok/s/user)",
    "tok_s_gpu": "Throughput per GPU (tok/s/GPU)",
    "output_tok_s": "Output throughput (tok/s)",
    "verify_budget": "Verify budget (tokens/request/step)",
    "speedup": "Speed-up over plain decoding",
    "accepted": "Accepted tokens per step, bonus included",
    "rejected": "Rejected tokens per step",
    "gain": "DSpark over MTP-1 (ratio)",
    "ece_pct": "Calibration error of the prefix (%)",
    "auc": "AUC of the prefix",
}
_FEW = 3


def save_validation(found: Validation, path: str | Path) -> list[Path]:
    """Write the picture of one case as PNG and SVG; return both paths."""
    quantities = list(dict.fromkeys(point.quantity for point in found.points))
    with house_figure(4.6 * len(quantities) + 1.8, 4.6) as figure:
        grid = figure.add_gridspec(2, len(quantities), height_ratios=[2.4, 1.0])
        styles = _styles(found)
        for column, quantity in enumerate(quantities):
            rates = figure.add_subplot(grid[0, column])
            errors = figure.add_subplot(grid[1, column], sharex=rates)
            points = [point for point in found.points if point.quantity == quantity]
            plot_points(points, rates, errors, styles, found.at)
            rates.set_ylabel(LABELS.get(quantity, quantity))
        _legend(figure, found)
        return write_figure(figure, path)


def plot_points(
    points: list[Point], ax: Axes, below: Axes, styles: dict[str, PolicyStyle], at: str
) -> None:
    """Draw one quantity: published as markers (hollow where fitted), predicted as lines."""
    for series in dict.fromkeys(point.series for point in points):
        rows = sorted((p for p in points if p.series == series), key=lambda p: p.at)
        look = styles[series]
        x = np.array([p.at for p in rows])
        ax.plot(x, [p.predicted for p in rows], color=look.colour, linewidth=1.3, label=look.label)
        if any(p.low == p.low for p in rows):
            low, high = np.array([p.low for p in rows]), np.array([p.high for p in rows])
            ax.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
        for fitted in (False, True):
            some = [p for p in rows if p.fitted == fitted]
            face = "white" if fitted else look.colour
            for axis, values in (
                (ax, [p.published for p in some]),
                (below, [p.error_pct for p in some]),
            ):
                axis.plot(
                    [p.at for p in some], values, linestyle="", marker=look.marker, markersize=5.0,
                    color=look.colour, markerfacecolor=face,
                )  # fmt: skip
    below.axhline(0.0, color="#555555", linewidth=0.8)
    below.set_ylabel("error (%)")
    below.set_xlabel(at[0].upper() + at[1:])
    ax.tick_params(labelbottom=False)
    ax.set_ylim(bottom=0.0)
    finish(ax)
    finish(below)
    mark_values(below, np.unique([point.at for point in points]))


def _styles(found: Validation) -> dict[str, PolicyStyle]:
    """Return each series' look: a policy's own, else the next of a fixed order."""
    names = list(dict.fromkeys(point.series for point in found.points))
    styles = policy_styles(name for name in names if name.partition(":")[0] in POLICIES)
    for place, name in enumerate(name for name in names if name not in styles):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        styles[name] = PolicyStyle(colour, marker, "-", name)
    return styles


def _legend(figure: Figure, found: Validation) -> None:
    """Explain series, and markers against lines, to the right of the last panel."""
    last = figure.axes[-2]
    last.plot([], [], color="#555555", linewidth=1.3, label="line: predicted")
    known = {point.fitted for point in found.points}
    for fitted, text in ((False, "published"), (True, "published, fitted")):
        if fitted in known:
            face = "white" if fitted else "#555555"
            last.plot(
                [], [], linestyle="", marker="o", color="#555555", markerfacecolor=face, label=text
            )  # fmt: skip
    legend(last)
    figure.suptitle(f"{found.case}  {found.title}", x=0.01, ha="left")
