"""The picture of a belief study: what each wrong belief loses, one panel per policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.study.figure import finish, house_figure, write_figure
from dspark_sim.study.plot_tune import MARKERS, SHADES

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes


def plot_belief(table: pd.DataFrame, ax: Axes, title: str | None = None) -> Axes:
    """Draw one policy's rows of `belief_study`: losses by belief, one mark per load."""
    names = [name for name in dict.fromkeys(table["belief"]) if name != "perfect belief"]
    loads = list(table.groupby(["concurrency", "request_rate"], dropna=False, sort=False))
    for place, ((concurrency, rate), rows) in enumerate(loads):
        closed = concurrency == concurrency  # no NaN
        shown = rows.set_index("belief").reindex(names)
        height = np.arange(len(names)) + (place - (len(loads) - 1) / 2) * 0.6 / len(loads)
        ax.errorbar(
            shown["loss_pct"], height, xerr=shown["loss_pct_ci95"].fillna(0.0), linestyle="none",
            color=SHADES[place % len(SHADES)], marker=MARKERS[place % len(MARKERS)], markersize=5,
            elinewidth=1.0, label=f"concurrency {concurrency:g}" if closed else f"{rate:g} req/s",
        )  # fmt: skip
    ax.axvline(0.0, color="#4D4D4D", linewidth=0.8, zorder=1)
    ax.set_ylim(len(names) - 0.5, -0.5)
    finish(ax, title)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("Throughput lost (%)")
    return ax


def save_belief(table: pd.DataFrame, path: str | Path) -> list[Path]:
    """Write the panels of all policies as PNG and SVG; return both paths."""
    policies = list(dict.fromkeys(table["policy"]))
    height = 0.3 * table["belief"].nunique() + 1.0
    with house_figure(2.6 + 3.0 * len(policies), max(height, 2.6)) as figure:
        axes = figure.subplots(1, len(policies), sharey=True, squeeze=False)[0]
        for ax, policy in zip(axes, policies, strict=True):
            plot_belief(table[table["policy"] == policy], ax, policy)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
        return write_figure(figure, path)
