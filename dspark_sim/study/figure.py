"""The house look of every picture, and writing one as PNG and SVG bytes that never vary."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CONFIG: dict[str, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "savefig.dpi": 200,
    "svg.hashsalt": "dspark-sim",
}
LABEL_SIZE = 7.5
LABEL_PLACES = (
    (0.7, 0.7), (0.9, 0.3), (0.3, 0.9), (1.0, 0.0), (0.0, 1.0), (-0.7, -0.7), (0.0, -1.0),
)  # fmt: skip
"""Where a point's label may go, in the order of liking, as a direction from the point."""


@contextmanager
def house_figure(width: float, height: float) -> Iterator[Figure]:
    """Give a figure (inches) in the house style, whatever the user's matplotlibrc says.

    Their settings are back when the block ends; no display and no pyplot state is touched.
    """
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", CONFIG]):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def write_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a PNG and an SVG beside each other, each whole or not at all; return both paths.

    Both are written whether `path` ends in .png, .svg or neither.
    """
    target = Path(path)
    stem = target.stem if target.suffix in (".png", ".svg") else target.name
    written = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        written.append(target.with_name(stem + suffix))
        with whole_file(written[-1]) as temporary:
            figure.savefig(temporary, metadata=metadata)
    return written


def finish(ax: Axes, title: str | None = None) -> None:
    """Add grid, title and thousands separators."""
    from matplotlib.ticker import FuncFormatter

    ax.grid(True, color="#E6E6E6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if title:
        ax.set_title(title, loc="left")


def legend(ax: Axes) -> None:
    """Put the legend to the right of the data."""
    ax.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, borderaxespad=0.0,
        handlelength=2.6, labelspacing=0.5,
    )  # fmt: skip


def log_scale(ax: Axes) -> None:
    """Make the y axis logarithmic with plain numbers at 1, 2 and 5 times each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def short(value: float) -> str:
    """Write a load: whole numbers in full, others with three digits.

    >>> short(256.0), short(47.36)
    ('256', '47.4')
    """
    return f"{value:.0f}" if value == round(value) else f"{value:.3g}"


def mark_values(ax: Axes, values: Floats) -> None:
    """Put the x ticks at these rising values, leaving out labels that would touch.

    The axis becomes logarithmic where the values span a factor of eight or more.
    """
    place = values
    if values.size > 1 and values[0] > 0 and values[-1] >= 8 * values[0]:
        ax.set_xscale("log", base=2)
        place = np.log(values)
    span = max(float(np.ptp(place)), 1e-9) if values.size else 1.0
    shown: list[int] = []
    for index, value in enumerate(values):
        room = (0.03 + 0.027 * len(short(value))) * span
        if not shown or place[index] - place[shown[-1]] >= room:
            shown.append(index)
    ax.set_xticks(values[shown], [short(value) for value in values[shown]])
    ax.set_xticks([], minor=True)


def label_points(ax: Axes, x: Floats, y: Floats, texts: Sequence[str]) -> None:
    """Write a text beside each point, where it hides least of the lines already drawn.

    A text that would touch an earlier one is left out. Call it last: it needs the final limits.
    """
    from matplotlib.patheffects import withStroke

    ax.figure.canvas.figure.draw_without_rendering()
    points = _in_points(ax, np.column_stack([x, y]))
    lines = [np.asarray(line.get_xydata(), dtype=float) for line in ax.lines]
    ink = np.concatenate([_in_points(ax, _dense(line)) for line in lines if len(line)])
    taken = np.empty((0, 4))
    for point, at, text in zip(points, zip(x, y, strict=True), texts, strict=True):
        half = np.array([0.31 * LABEL_SIZE * len(text), 0.42 * LABEL_SIZE])
        offsets = [np.array(place) * (half + 6.0) for place in LABEL_PLACES]
        hidden = [np.sum(np.all(np.abs(ink - point - off) < half + 2.0, axis=1)) for off in offsets]
        offset = offsets[int(np.argmin(hidden))]
        box = np.r_[point + offset - half, point + offset + half]
        if np.any(np.all((box[:2] < taken[:, 2:]) & (box[2:] > taken[:, :2]), axis=1)):
            continue
        taken = np.vstack([taken, box])
        ax.annotate(
            text, at, tuple(offset), textcoords="offset points", ha="center", va="center",
            fontsize=LABEL_SIZE, color="#303030", zorder=9,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def _in_points(ax: Axes, data: Floats) -> Floats:
    """Return positions on the page in typographic points (1/72 inch)."""
    return np.asarray(ax.transData.transform(data)) * 72.0 / ax.figure.dpi


def _dense(corners: Floats) -> Floats:
    """Return a polyline with 32 points per segment."""
    steps = np.linspace(0, len(corners) - 1, 32 * (len(corners) - 1) + 1)
    return np.column_stack([np.interp(steps, np.arange(len(corners)), c) for c in corners.T])
