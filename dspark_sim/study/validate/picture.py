"""Pictures of a validation: published against predicted, one panel per quantity, errors below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.policies import POLICIES
from dspark_sim.study.figure import finish, house_figure, mark_values, write_figure
from dspark_sim.study.style import COLOURS, MARKERS, PolicyStyle, policy_styles

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

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
    "acceptance_length": "Acceptance length (tokens per step)",
    "wait_ms": "Mean wait (ms)",
    "draft_len": "Best draft length",
    "tpot_ms": "TPOT (ms)",
    "ttft_p50_ms": "TTFT, median (ms)",
    "step_ms": "Step time (ms)",
}
_COLUMNS = 3
_LEGEND = "lines: predicted; markers: published or measured, hollow where fitted"


def save_validation(found: Validation, path: str | Path) -> list[Path]:
    """Write the picture of one case as PNG and SVG; return both paths."""
    quantities = list(dict.fromkeys(point.quantity for point in found.points))
    columns = min(len(quantities), _COLUMNS)
    lines = -(-len(quantities) // columns)
    with house_figure(4.9 * columns, 5.4 * lines + 0.3) as figure:
        grid = figure.add_gridspec(2 * lines, columns, height_ratios=[2.4, 1.0] * lines)
        styles = _styles(found)
        for place, quantity in enumerate(quantities):
            line, column = divmod(place, columns)
            ax = figure.add_subplot(grid[2 * line, column])
            below = figure.add_subplot(grid[2 * line + 1, column], sharex=ax)
            points = [point for point in found.points if point.quantity == quantity]
            plot_points(points, ax, below, styles, found.axis(quantity))
            ax.set_ylabel(LABELS.get(quantity, quantity))
        figure.suptitle(f"{found.case}  {found.title}\n{_LEGEND}", x=0.01, ha="left")
        return write_figure(figure, path)


def plot_points(
    points: list[Point], ax: Axes, below: Axes, styles: dict[str, PolicyStyle], at: str
) -> None:
    """Draw one quantity above, and its errors below; its legend stands above the panel."""
    for series in dict.fromkeys(point.series for point in points):
        rows = sorted((p for p in points if p.series == series), key=lambda p: p.at)
        look = styles[series]
        x = np.array([p.at for p in rows])
        ax.plot(x, [p.predicted for p in rows], color=look.colour, linewidth=1.3)
        ax.plot(
            [], [], color=look.colour, linewidth=1.3, marker=look.marker, markersize=5.0,
            label=look.label,
        )  # fmt: skip
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
    tallest = np.nanmax([(p.published, p.predicted, p.high) for p in points])
    ax.set_ylim(0.0, 1.06 * tallest)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.01), ncols=2, frameon=False, borderaxespad=0.0
    )
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
