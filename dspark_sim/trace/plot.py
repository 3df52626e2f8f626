"""A picture of a trace: when requests arrive and how long they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dspark_sim.trace.rules import IntArray
    from dspark_sim.trace.trace import Trace

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#595959"  # Okabe and Ito
WINDOWS_S = (0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400)


def plot_trace(trace: Trace, path: str | Path) -> tuple[Path, Path]:
    """Draw the arrival rate and the two length distributions; write them as PNG and as SVG.

    `path` may end in `.png`, `.svg` or neither. Returns both paths. The same trace gives the same
    bytes.
    """
    import matplotlib as mpl

    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in {".png", ".svg"} else stem
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    with mpl.rc_context({"svg.hashsalt": "dspark-sim", "font.size": 9.5}):
        figure = draw_trace(trace)
        with whole_file(png) as temporary:
            figure.savefig(temporary, dpi=150, metadata={"Software": None})
        with whole_file(svg) as temporary:
            figure.savefig(temporary, metadata={"Date": None})
    return png, svg


def draw_trace(trace: Trace) -> Figure:
    """Draw the picture of `plot_trace` and return the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    plot_arrivals(trace, figure.add_subplot(grid[0, :]))
    prompts, outputs = (figure.add_subplot(grid[1, column]) for column in (0, 1))
    plot_lengths(trace.requests["prompt_tokens"].to_numpy(), "Prompt", BLUE, prompts)
    plot_lengths(trace.requests["output_tokens"].to_numpy(), "Output", GREEN, outputs)
    figure.suptitle(f"{trace.name}: {len(trace):,} requests", fontweight="bold")
    return figure


def plot_arrivals(trace: Trace, axes: Axes) -> Axes:
    """Draw requests per second over time, counted in even windows, beside the mean rate."""
    times = trace.requests["arrival_s"].to_numpy()
    if trace.duration_s <= 0:
        axes.text(0.5, 0.5, f"all requests arrive at {times[0]:g} s", ha="center", va="center")
        axes.set_axis_off()
        return axes
    window = next((w for w in WINDOWS_S if trace.duration_s <= 120 * w), WINDOWS_S[-1])
    edges = times[0] + np.arange(0, trace.duration_s, window)
    if len(edges) > 1 and times[-1] - edges[-1] < window / 2:
        edges = edges[:-1]  # the last window is at least half as long as the others
    edges = np.append(edges, times[-1])
    rates = np.histogram(times, edges)[0] / np.diff(edges)
    axes.stairs(rates, edges, fill=True, color=BLUE, alpha=0.3)
    axes.stairs(rates, edges, color=BLUE, linewidth=1.2, baseline=None)
    axes.axhline(trace.rate_per_s, color=ORANGE, linestyle="--", linewidth=1.4)
    axes.set(xlabel="Arrival time (s)", ylabel="Arrivals (requests/s)")
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None))
    _finish(axes, f"in windows of {window:g} s; dashed: mean {trace.rate_per_s:.3g} requests/s")
    axes.xaxis.set_major_formatter("{x:,g}")
    return axes


def plot_lengths(tokens: IntArray, what: str, colour: str, axes: Axes) -> Axes:
    """Draw a histogram of lengths on a log axis, with the median and the 90th percentile."""
    from matplotlib.ticker import NullFormatter

    middle = float(np.sqrt(tokens.min() * tokens.max()))
    low = max(0.5, min(tokens.min() / 1.3, middle / 8))  # at least two powers of ten wide
    high = max(tokens.max() * 1.3, middle * 8)
    edges = np.unique(np.rint(np.geomspace(low, high, 41))) - 0.5
    edges[0] = max(edges[0], low)
    shares = 100 * np.histogram(tokens, edges)[0] / len(tokens)
    axes.stairs(shares, edges, fill=True, color=colour, alpha=0.3)
    axes.stairs(shares, edges, color=colour, linewidth=1.2)
    p50, p90 = np.percentile(tokens, [50, 90])
    for value, style in ((p50, "-"), (p90, ":")):
        axes.axvline(value, color=GREY, linestyle=style, linewidth=1.4)
    axes.set(xscale="log", xlim=(low, high), ylim=(0, None))
    axes.set(xlabel=f"{what} length (tokens)", ylabel="Requests (% per bar)")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    _finish(axes, f"solid: median {p50:,.0f}; dotted: p90 {p90:,.0f} tokens")
    return axes


def _finish(axes: Axes, caption: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(caption, loc="left", fontsize=9, color=GREY)
