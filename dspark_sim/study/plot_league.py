"""The picture of a league: policies by loads, coloured by their gain on the best fixed length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.study.figure import house_figure, write_figure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

LIMIT = 25.0
"""Gains and losses, in percent, at which the colours end."""
COLOURS = "PuOr_r"
FAR = 0.6  # share of the limit beyond which a colour is dark and its number white


def plot_league(table: pd.DataFrame, ax: Axes, order: list[str]) -> AxesImage:
    """Draw a league's table as a heat map: a row per policy in this order, a column per load.

    Numbers are percent over the best fixed length; bold ones are not surely below the best
    published rule (95 % paired). A frame marks the lossless policy with the highest mean.
    """
    from matplotlib.patches import Rectangle

    gains = table.pivot_table("over_fixed_pct", "policy", "concurrency").reindex(order)
    bound = table.assign(most=table["over_published_pct"] + table["over_published_ci95"])
    level = bound.pivot_table("most", "policy", "concurrency").reindex(order) >= 0.0
    values, bold = gains.to_numpy(dtype=float), level.to_numpy(dtype=bool)
    image = ax.imshow(values, cmap=COLOURS, vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    for (row, column), gain in np.ndenumerate(values):
        if np.isfinite(gain):
            ax.text(
                column, row, _percent(gain), ha="center", va="center", fontsize=7,
                color="white" if abs(gain) > FAR * LIMIT else "black",
                weight="bold" if bold[row, column] else "normal",
            )  # fmt: skip
    best = table[table["lossless"]].groupby("concurrency")["tok_s_gpu"].idxmax()
    for column, load in enumerate(gains.columns):
        row = order.index(table.loc[best[load], "policy"])
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, linewidth=1.8))
    ax.set_xticks(range(len(gains.columns)), [str(load) for load in gains.columns])
    ax.tick_params(length=0)
    ax.set_xlabel("Requests in flight")
    return image


def _percent(gain: float) -> str:
    return f"{round(gain, 1) + 0.0:+.1f}" if abs(gain) < 9.95 else f"{gain:+.0f}"


def save_league(
    tables: Mapping[str, pd.DataFrame], order: list[str], path: str | Path, title: str
) -> list[Path]:
    """Write one heat map per traffic side by side, as PNG and SVG; return both paths.

    `tables` are leagues by the traffic's name; policies that are not lossless are marked.
    """
    with house_figure(3.4 * len(tables) + 2.2, 0.19 * len(order) + 1.3) as figure:
        axes = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
        lossless = next(iter(tables.values())).set_index("policy")["lossless"].to_dict()
        for ax, (name, table) in zip(axes, tables.items(), strict=True):
            image = plot_league(table, ax, order)
            ax.set_title(name, loc="left")
            ax.spines[:].set_visible(False)
        labels = [policy if lossless[policy] else f"{policy} (not lossless)" for policy in order]
        axes[0].set_yticks(range(len(order)), labels)
        bar = figure.colorbar(image, ax=axes, shrink=0.5, aspect=25, extend="both")
        bar.set_label("tok/s/GPU over the best fixed length (%)")
        bar.outline.set_visible(False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        return write_figure(figure, path)
