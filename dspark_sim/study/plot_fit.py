"""Picture of a fit to benchmark results: measured against fitted, errors, and θ(M)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.study.figure import (
    finish,
    house_figure,
    legend,
    log_scale,
    mark_values,
    write_figure,
)
from dspark_sim.study.fit_bench import C, K, errors
from dspark_sim.study.style import policy_styles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.axes import Axes

    from dspark_sim.study.fit_bench import BenchFit
    from dspark_sim.study.style import PolicyStyle

_BLUE, _GREY = "#0072B2", "#555555"


def save_fit(found: BenchFit, path: str | Path, title: str | None = None) -> list[Path]:
    """Draw rates and their errors over concurrency, and θ(M); write PNG and SVG."""
    with house_figure(12.0, 4.6) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=[2.2, 1.0])
        rates = figure.add_subplot(grid[0, 0])
        plot_rates(found, rates, figure.add_subplot(grid[1, 0], sharex=rates))
        plot_theta(found, figure.add_subplot(grid[:, 1]))
        figure.suptitle(_title(found, title), x=0.01, ha="left")
        return write_figure(figure, path)


def _title(found: BenchFit, name: str | None) -> str:
    parts = []
    for table, what in ((found.fitted, "fitted"), (found.held_out, "held out")):
        if len(table):
            error = errors(table)["tok_s_user_mean_pct"]
            parts.append(f"{len(table)} results {what}, mean error {error:.1f} %")
    return (f"{name}: " if name else "") + "; ".join(parts)


def plot_rates(found: BenchFit, ax: Axes, below: Axes) -> None:
    """Draw tok/s/user over concurrency, a line fitted per draft length, and errors below it."""
    for k, fitted, look in _by_draft_len(found):
        loads = np.geomspace(fitted[C].min(), fitted[C].max(), 60)
        line = found.fit.predict(pd.DataFrame({K: k, C: loads}))
        ax.plot(loads, line["fitted_tok_s_user"], color=look.colour, linewidth=1.2)
        for held in (False, True):
            rows = fitted[fitted["held"] == held].sort_values(C)
            style = _markers(look, held, f"k = {k}" + (", held out" if held else ""))
            if len(rows):
                ax.plot(rows[C], rows["tok_s_user"], **style)
                below.plot(rows[C], rows["error_pct"], **{**style, "label": ""})
    log_scale(ax)
    ax.set_ylabel("tok/s/user (line: fitted)")
    finish(ax, "Measured against fitted")
    ax.tick_params(labelbottom=False)
    below.axhline(0.0, color=_GREY, linewidth=0.8)
    below.set_ylabel("error (%)")
    below.set_xlabel("Concurrency c (requests in flight)")
    finish(below)
    loads = np.unique(np.concatenate([found.fitted[C], found.held_out[C]])).astype(float)
    mark_values(below, loads)
    legend(ax)


def plot_theta(found: BenchFit, ax: Axes) -> Axes:
    """Draw θ(M) with its interval, and every measured step time less α and draft."""
    fit = found.fit
    low, high = np.exp(fit.model.knots[[0, -1]])
    sizes = np.unique(np.concatenate([np.geomspace(low, high, 200), fit.measured_sizes()]))
    table = fit.theta(sizes)
    ax.fill_between(
        sizes, table["low_ms"], table["high_ms"], color=_BLUE, alpha=0.18, linewidth=0,
        label="95 % interval",
    )  # fmt: skip
    ax.plot(sizes, table["ms"], color=_BLUE, linewidth=1.4, label="θ(M)")
    rows = found.fitted
    theta = fit.theta(rows["batch_tokens"])["ms"].to_numpy()
    step = (rows["step_ms"] * rows["fitted_tok_s_user"] / rows["tok_s_user"]).to_numpy()
    ax.plot(
        rows["batch_tokens"], step - (rows["step_ms"].to_numpy() - theta), linestyle="",
        marker="o", markersize=3.5, color=_GREY, label="results, less\nα and draft",
    )  # fmt: skip
    log_scale(ax)
    mark_values(ax, np.unique(rows["batch_tokens"]).astype(float))
    ax.set_xlabel("Batch tokens in a step M = c (1 + k)")
    ax.set_ylabel("Step time (ms)")
    finish(ax, "Step time θ(M)")
    legend(ax)
    return ax


def _by_draft_len(found: BenchFit) -> Iterator[tuple[int, pd.DataFrame, PolicyStyle]]:
    whole = pd.concat([found.fitted.assign(held=False), found.held_out.assign(held=True)])
    names = {int(k): f"fixed:{k}" if k else "none" for k in sorted(whole[K].unique())}
    styles = policy_styles(names.values())
    for k, name in names.items():
        yield k, whole[whole[K] == k], styles[name]


def _markers(look: PolicyStyle, held: bool, label: str) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": look.marker,
        "markersize": 5.5,
        "color": look.colour,
        "markerfacecolor": "white" if held else look.colour,
        "label": label,
    }
