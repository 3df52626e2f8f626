"""The picture of tuning: the objective against the parameter, one line per load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.study.figure import finish, house_figure, legend, write_figure
from dspark_sim.study.objective import UNITS

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from dspark_sim.study.tune import Tuned

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
SHADES = ("#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#882255", "#000000")


def plot_tune(tuned: Tuned, ax: Axes, title: str | None = None) -> Axes:
    """Draw each load's objective in percent of its best.

    Hollow points are out; a star marks the best value, the bar above it the values that are not
    surely worse; error bars are 95 % intervals of the loss's mean over seeds.
    """
    lowest = 100.0
    for place, (_, row) in enumerate(tuned.table.iterrows()):
        rows = tuned.values[tuned.values["load"] == row["load"]]
        colour, marker = SHADES[place % len(SHADES)], MARKERS[place % len(MARKERS)]
        share = 100.0 - rows["loss_pct"].to_numpy(dtype=float)
        lowest = min(lowest, float(np.nanmin(share)))
        inside = rows["still_in"].to_numpy(dtype=bool)
        label = f"{row['load']}: {row['objective']:,.4g}"
        ax.plot(rows["value"], share, color=colour, linewidth=1.4, label=label, marker=marker,
                markersize=5, markerfacecolor="white")  # fmt: skip
        ax.plot(rows["value"][inside], share[inside], color=colour, marker=marker, markersize=5,
                linestyle="none")  # fmt: skip
        above = 101.0 + 0.9 * place
        ax.plot([row["low"], row["high"]], [above, above], color=colour, linewidth=3,
                solid_capstyle="butt")  # fmt: skip
        ax.plot(row["best"], above, color=colour, marker="*", markersize=10,
                markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    ax.axhline(100.0, color="#BFBFBF", linewidth=0.8, zorder=1)
    ax.set_ylim(max(lowest - 3.0, 0.0), 101.5 + 0.9 * len(tuned.table))
    ax.set_xlabel("Parameter")
    ax.set_ylabel("Objective (% of each load's best)")
    finish(ax, title)
    legend(ax)
    box = ax.get_legend()
    if box is not None:
        box.set_title(f"load: best\n({UNITS[tuned.objective.name]})")
    return ax


def save_tune(tuned: Tuned, path: str | Path, title: str | None = None) -> list[Path]:
    """Write the picture as PNG and SVG; return both paths."""
    with house_figure(7.4, max(3.8, 0.19 * len(tuned.table) + 1.2)) as figure:
        plot_tune(tuned, figure.subplots(), title)
        return write_figure(figure, path)
