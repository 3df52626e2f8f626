"""Pictures of a sweep: Pareto curve, load, latency and waste.

The `plot_*` functions draw a sweep (one row per run) on the axes they are given and return them;
the `save_*` functions write the picture as PNG and as SVG, whichever suffix `path` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.study.figure import (
    finish,
    house_figure,
    label_points,
    legend,
    log_scale,
    mark_values,
    short,
    write_figure,
)
from dspark_sim.study.pareto import joint_frontier, pareto_frontier
from dspark_sim.study.seeds import aggregate
from dspark_sim.study.style import policy_styles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

PERCENTILES = ("p50", "p90", "p99")
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "icl": "Inter-chunk latency"}
WIDE = 10.0
"""Latencies that span more than this factor are drawn on a logarithmic scale."""


def plot_pareto(runs: pd.DataFrame, ax: Axes, title: str | None = None) -> Axes:
    """Draw throughput per GPU against interactivity: one curve per policy, up and right is better.

    A curve is the policy's own frontier of means over seeds; a dotted line leads through its
    dominated points in order of load. Error bars are 95 % intervals over seeds. The thick grey
    line is the joint frontier of all lossless policies, its points labelled with the load.
    """
    means = aggregate(runs)
    joint = means[joint_frontier(means)].sort_values("tok_s_user")
    x, y = (joint[column].to_numpy(dtype=float) for column in ("tok_s_user", "tok_s_gpu"))
    for policy, rows, look in _policies(means):
        _draw_curve(ax, rows, policy, look)
    what = load_name(means).partition(" (")[0].lower()
    ax.plot(x, y, color="#D4D4D4", linewidth=8, zorder=1, solid_capstyle="round")
    ax.plot(
        [], [], color="#D4D4D4", linewidth=6, solid_capstyle="butt",
        label=f"joint frontier\n(labels: {what})",
    )  # fmt: skip
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("Interactivity (tok/s/user)")
    ax.set_ylabel("Output throughput per GPU (tok/s/GPU)")
    finish(ax, title)
    legend(ax)
    named = joint["load"].notna() & ~joint["load"].duplicated()
    texts = [short(load) if shown else "" for load, shown in zip(joint["load"], named, strict=True)]
    label_points(ax, x, y, texts)
    return ax


def plot_load(runs: pd.DataFrame, axes: Sequence[Axes], title: str | None = None) -> Sequence[Axes]:
    """Draw throughput (left) and verify budget (right) against load: the paper's Fig. 8.

    The verify budget counts target tokens per request and step, anchor included
    (arXiv 2607.05147); bands are 95 % intervals over seeds.
    """
    left, right = axes
    means = aggregate(runs)
    _draw_metric(left, means, "tok_s_gpu")
    _draw_metric(right, means, "verify_budget")
    left.set_ylabel("Output throughput per GPU (tok/s/GPU)")
    right.set_ylabel("Verify budget (tokens/request/step)")
    for ax in (left, right):
        ax.set_ylim(bottom=0.0)
        finish(ax, title if ax is left else None)
    legend(right)
    return axes


def plot_latency(
    runs: pd.DataFrame, axes: np.ndarray[Any, Any], title: str | None = None
) -> np.ndarray[Any, Any]:
    """Draw latency against load: rows TTFT, TPOT and inter-chunk latency, columns p50, p90, p99.

    `axes` has shape (3, 3). A row shares its scale: from zero, or logarithmic where its values
    span more than a factor of ten.
    """
    means = aggregate(runs)
    for row, (metric, name) in zip(axes, LATENCIES.items(), strict=True):
        columns = [f"{metric}_{percentile}_ms" for percentile in PERCENTILES]
        for ax, column in zip(row, columns, strict=True):
            _draw_metric(ax, means, column)
            finish(ax)
            if ax not in axes[-1]:
                ax.set_xlabel("")
        row[0].set_ylabel(f"{name} (ms)")
        _share_scale(row, means[columns].to_numpy(dtype=float))
    for ax, percentile in zip(axes[0], PERCENTILES, strict=True):
        ax.set_title(percentile.upper())
    if title:
        axes[0, 0].figure.suptitle(title)
    legend(axes[0, -1])
    return axes


def plot_waste(runs: pd.DataFrame, ax: Axes, title: str | None = None) -> Axes:
    """Draw the share of target tokens that were verified and rejected, in %, against load."""
    means = aggregate(runs)
    _draw_metric(ax, means, "wasted_fraction", scale=100.0)
    ax.set_ylim(bottom=0.0)
    ax.set_ylabel("Verified and rejected (% of target tokens)")
    finish(ax, title)
    legend(ax)
    return ax


def save_pareto(runs: pd.DataFrame, path: str | Path, title: str | None = None) -> list[Path]:
    """Write the Pareto picture as PNG and SVG; return both paths."""
    with house_figure(7.2, _height(runs, 4.4)) as figure:
        plot_pareto(runs, figure.subplots(), title)
        return write_figure(figure, path)


def save_load(runs: pd.DataFrame, path: str | Path, title: str | None = None) -> list[Path]:
    """Write throughput and verify budget against load as PNG and SVG; return both paths."""
    with house_figure(9.6, _height(runs, 3.6)) as figure:
        plot_load(runs, figure.subplots(1, 2), title)
        return write_figure(figure, path)


def save_latency(runs: pd.DataFrame, path: str | Path, title: str | None = None) -> list[Path]:
    """Write the latency percentiles against load as PNG and SVG; return both paths."""
    with house_figure(9.6, _height(runs, 6.6)) as figure:
        plot_latency(runs, figure.subplots(3, 3, sharex=True, sharey="row"), title)
        return write_figure(figure, path)


def save_waste(runs: pd.DataFrame, path: str | Path, title: str | None = None) -> list[Path]:
    """Write the wasted share against load as PNG and SVG; return both paths."""
    with house_figure(6.8, _height(runs, 3.6)) as figure:
        plot_waste(runs, figure.subplots(), title)
        return write_figure(figure, path)


def _height(runs: pd.DataFrame, least: float) -> float:
    """Return inches enough for a legend with one line per policy."""
    return max(least, 0.19 * runs["policy"].nunique() + 0.8)


def load_name(means: pd.DataFrame) -> str:
    """Name the load of an aggregated sweep: concurrency, request rate, or both."""
    closed = means["concurrency"].notna()
    if closed.all():
        return "Concurrency"
    return "Load" if closed.any() else "Request rate (req/s)"


def _policies(means: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """Give each policy's rows and look; later ones are smaller, so that equal curves both show."""
    for index, (policy, style) in enumerate(policy_styles(means["policy"]).items()):
        small = min(index / 10.0, 1.0)
        yield policy, means[means["policy"] == policy], {
            "color": style.colour, "marker": style.marker, "linestyle": style.linestyle,
            "label": style.label, "linewidth": 2.0 - small, "markersize": 7.0 - 2.5 * small,
            "markeredgecolor": style.colour if style.marker == "P" else "white",
            "markeredgewidth": 0.5, "zorder": 3.0 + small,
        }  # fmt: skip


def _draw_curve(ax: Axes, rows: pd.DataFrame, policy: str, look: dict[str, Any]) -> None:
    own = pareto_frontier(rows["tok_s_user"], rows["tok_s_gpu"])
    best = rows[own].sort_values("tok_s_user")
    if not own.all():
        faint = {"linestyle": ":", "linewidth": 0.9, "markersize": 4.0, "alpha": 0.5, "zorder": 2}
        ax.plot(rows["tok_s_user"], rows["tok_s_gpu"], **look | faint | {"label": None})
    ax.plot(best["tok_s_user"], best["tok_s_gpu"], **look)
    if best["tok_s_gpu_ci95"].notna().any():
        ax.errorbar(
            best["tok_s_user"], best["tok_s_gpu"], xerr=best["tok_s_user_ci95"].fillna(0.0),
            yerr=best["tok_s_gpu_ci95"].fillna(0.0), fmt="none", ecolor=look["color"],
            elinewidth=0.9, zorder=look["zorder"],
        )  # fmt: skip


def _draw_metric(ax: Axes, means: pd.DataFrame, metric: str, scale: float = 1.0) -> None:
    """Draw one line per policy with its band, on an axis that shows the measured loads."""
    means = means[np.isfinite(means["load"])]
    for _, shown, look in _policies(means):
        load, value = shown["load"], shown[metric] * scale
        ax.plot(load, value, **look)
        half = shown[f"{metric}_ci95"].fillna(0.0) * scale
        if half.any():
            ax.fill_between(
                load, value - half, value + half, color=look["color"], alpha=0.18, linewidth=0
            )
    ax.set_xlabel(load_name(means))
    mark_values(ax, np.unique(means["load"].to_numpy(dtype=float)))


def _share_scale(row: Sequence[Axes], values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    known = values[np.isfinite(values)]
    for ax in row:
        if known.size == 0:
            ax.set_yticks([])
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color="#7F7F7F")
        elif known.min() > 0 and known.max() > WIDE * known.min():
            log_scale(ax)
        else:
            ax.set_ylim(0.0, 1.05 * known.max() if known.max() > 1e-6 else 1.0)
