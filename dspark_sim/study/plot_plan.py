"""The picture of a plan: how near one replica comes to its SLO, and the frontier within it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.study.figure import finish, house_figure, legend, write_figure
from dspark_sim.study.slo import MET, NAMES
from dspark_sim.study.style import policy_styles

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from dspark_sim.study.plan import Plan

FURTHEST = 2.5  # of the limit: what lies beyond is drawn at the edge


def plot_slo(plan: Plan, ax: Axes) -> Axes:
    """Draw the worst percentile, as a share of its limit, against the rate of one replica.

    Hollow points violate the SLO or may do so; below the line, in the band, it holds.
    """
    ax.axhspan(0.0, 1.0, color="#009E73", alpha=0.10, linewidth=0)
    ax.axhline(1.0, color="#4D4D4D", linewidth=0.9)
    columns = {name: f"{name}_p{plan.slo.percentile}_ms" for name in plan.slo.limits}
    for policy, style in policy_styles(plan.table["policy"]).items():
        rows = plan.points[plan.points["policy"] == policy]
        ratios = np.array([rows[key] / plan.slo.limits[name] for name, key in columns.items()])
        worst = np.minimum(np.nanmax(ratios, axis=0), FURTHEST) if len(rows) else np.zeros(0)
        met = (rows["verdict"] == MET).to_numpy()
        ax.plot(rows["rate"], worst, color=style.colour, linestyle=style.linestyle, linewidth=1.4)
        for kept, face in ((met, style.colour), (~met, "white")):
            ax.plot(
                rows["rate"][kept], worst[kept], color=style.colour, marker=style.marker,
                markerfacecolor=face, linestyle="none", markersize=5.5,
            )  # fmt: skip
    ax.set_ylim(0.0, FURTHEST * 1.03)
    ax.set_xlim(left=0.0)
    ax.set_xlabel("Request rate of one replica (req/s)")
    names = ", ".join(f"{NAMES[name]} {limit:g} ms" for name, limit in plan.slo.limits.items())
    ax.set_ylabel(f"Worst P{plan.slo.percentile} / its limit")
    finish(ax, f"SLO: {names} at P{plan.slo.percentile}")
    return ax


def plot_frontier(plan: Plan, ax: Axes) -> Axes:
    """Draw throughput against interactivity; only points within the SLO are on the frontier."""
    best = plan.points[plan.points["on_frontier"]].sort_values("tok_s_user")
    ax.plot(
        best["tok_s_user"], best["tok_s_gpu"], color="#D4D4D4", linewidth=8, zorder=1,
        solid_capstyle="round", label="frontier within the SLO",
    )  # fmt: skip
    for policy, style in policy_styles(plan.table["policy"]).items():
        rows = plan.points[plan.points["policy"] == policy].sort_values("rate")
        met = (rows["verdict"] == MET).to_numpy()
        ax.plot(rows["tok_s_user"], rows["tok_s_gpu"], color=style.colour, linewidth=0.8, alpha=0.6)
        for kept, face, label in ((met, style.colour, style.label), (~met, "white", None)):
            ax.plot(
                rows["tok_s_user"][kept], rows["tok_s_gpu"][kept], color=style.colour,
                marker=style.marker, markerfacecolor=face, linestyle="none", markersize=5.5,
                label=label,
            )  # fmt: skip
    row = plan.table[plan.table["policy"] == plan.recommended]
    if len(row):
        ax.plot(
            row["tok_s_user"], row["tok_s_gpu"], marker="*", markersize=15, color="#F0E442",
            markeredgecolor="black", linestyle="none", label="recommended", zorder=8,
        )  # fmt: skip
    ax.plot(
        [], [], "o", color="#4D4D4D", markerfacecolor="white", label="not surely within the SLO"
    )
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("Interactivity (tok/s/user)")
    ax.set_ylabel("Output throughput per GPU (tok/s/GPU)")
    finish(ax)
    legend(ax)
    return ax


def save_plan(plan: Plan, path: str | Path) -> list[Path]:
    """Write both panels as PNG and SVG; return both paths."""
    height = max(3.8, 0.19 * len(plan.table) + 1.4)
    with house_figure(10.2, height) as figure:
        left, right = figure.subplots(1, 2)
        plot_slo(plan, left)
        plot_frontier(plan, right)
        return write_figure(figure, path)
