"""The picture of `explain`: one stacked bar per policy, one panel per load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_sim.study.explain import PARTS, TOTAL
from dspark_sim.study.figure import finish, house_figure, write_figure

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

LOOKS = {
    "pass": ("#0072B2", "target pass"),
    "committed": ("#56B4E9", "verify: committed"),
    "rejected": ("#D55E00", "verify: rejected"),
    "padding": ("#F0C890", "padding"),
    "draft": ("#CC79A7", "draft"),
    "prefill": ("#009E73", "prefill"),
    "context": ("#999933", "context"),
    "overhead": ("#7F7F7F", "overhead"),
    "idle": ("#E6E6E6", "idle"),
}
"""Part to colour (Okabe-Ito and shades) and name in the legend."""
COLUMNS = 3


def plot_explain(table: pd.DataFrame, ax: Axes, title: str | None = None) -> Axes:
    """Draw the bars of one load, policies from top to bottom: its rows of `explain`."""
    policies = list(dict.fromkeys(table["policy"]))
    left = dict.fromkeys(policies, 0.0)
    for part in PARTS:
        rows = table[table["part"] == part].set_index("policy")[TOTAL].reindex(policies)
        if rows.abs().max() > 0:
            colour, label = LOOKS[part]
            ax.barh(
                policies, rows, left=list(left.values()), color=colour, label=label,
                height=0.74, linewidth=0.4, edgecolor="white",
            )  # fmt: skip
        left = {policy: left[policy] + float(rows[policy]) for policy in policies}
    for place, policy in enumerate(policies):
        ax.text(left[policy], place, f" {left[policy]:.4g}", va="center", fontsize=7)
    ax.set_ylim(len(policies) - 0.4, -0.6)
    ax.margins(x=0.14)
    finish(ax, title)
    ax.yaxis.set_major_formatter(lambda place, _: policies[min(int(place), len(policies) - 1)])
    ax.grid(False, axis="y")
    return ax


def save_explain(table: pd.DataFrame, path: str | Path) -> list[Path]:
    """Write the bars of every load as PNG and SVG; return both paths."""
    loads = list(table.groupby(["concurrency", "request_rate"], dropna=False, sort=False))
    across = min(COLUMNS, len(loads))
    down = -(-len(loads) // across)
    height = down * (0.24 * table["policy"].nunique() + 0.75) + 0.35
    with house_figure(1.6 + 3.1 * across, max(height, 2.2)) as figure:
        axes = figure.subplots(down, across, sharey=True, squeeze=False)
        for ax, ((concurrency, rate), rows) in zip(axes.flat, loads, strict=False):
            closed = concurrency == concurrency  # no NaN
            name = f"concurrency {concurrency:g}" if closed else f"{rate:g} req/s"
            plot_explain(rows, ax, name if closed or rate == rate else None)
        for ax in axes.flat[len(loads) :]:
            ax.set_axis_off()
        figure.supxlabel("Engine time per output token (µs)", fontsize=9)
        known: dict[str, Any] = {}
        for ax in axes.flat[: len(loads)]:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                known.setdefault(label, handle)
        figure.legend(list(known.values()), list(known), loc="outside right upper", frameon=False)
        return write_figure(figure, path)
