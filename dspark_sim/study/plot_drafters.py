"""Pictures of drafters: acceptance length, conditional acceptance, and what a threshold saves.

The `plot_*` functions draw a `Comparison` on the axes they are given and return them; the `save_*`
functions write the picture as PNG and as SVG, whichever suffix `path` has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sim.study.drafter_style import drafter_styles
from dspark_sim.study.figure import finish, house_figure, write_figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dspark_sim.study.drafters import Comparison

Z95 = 1.96
"""Half width of a 95 % interval in standard errors."""
FEW = 20
"""Conditional acceptance of fewer rounds than this is not drawn."""
_NO_LINE = {"linestyle": "none"}
_BARS = "bars: 95 % intervals\nover responses"
_SWEPT = (
    ("accepted", "Accepted drafts (tokens/round)", 1.0),
    ("rejected", "Rejected drafts (tokens/round)", 1.0),
    ("acceptance_rate", "Accepted / verified drafts (%)", 100.0),
)


def plot_acceptance_lengths(comparison: Comparison, ax: Axes) -> Axes:
    """Draw τ with its 95 % interval: categories side by side, in each one marker per recording."""
    categories = comparison.categories
    for name, look, shift in _looks(comparison, width=0.8):
        rows = _rows(comparison.acceptance_length, name)
        x = [categories.index(category) + shift for category in rows["category"]]
        _draw(ax, x, rows["acceptance_length"], rows["standard_error"], look | _NO_LINE)
    for place in range(1, len(categories), 2):
        ax.axvspan(place - 0.5, place + 0.5, color="#F4F4F4", zorder=0, linewidth=0)
    ax.set_xlim(-0.5, len(categories) - 0.5)
    ax.set_xticks(range(len(categories)), categories)
    ax.set_ylim(bottom=1.0)
    ax.set_xlabel("Category of responses")
    ax.set_ylabel("Acceptance length\n(tokens/round, bonus included)")
    finish(ax)
    ax.grid(False, axis="x")
    return ax


def plot_conditional(comparison: Comparison, axes: Sequence[Axes]) -> Sequence[Axes]:
    """Draw acceptance of each draft position, given all before it, one panel per category.

    Fig. 2 of arXiv 2607.05147, with 95 % intervals; positions that fewer than 20 rounds reached
    are left out.
    """
    longest = int(comparison.conditional["position"].max())
    for ax, category in zip(axes, comparison.categories, strict=True):
        for name, look, shift in _looks(comparison, width=0.2):
            rows = _rows(comparison.conditional, name, category)
            rows = rows[rows["reached"] >= FEW]
            x = rows["position"] + shift
            _draw(ax, x, rows["conditional"], rows["standard_error"], look)
        ax.set_xticks(range(1, longest + 1))
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel("Draft position")
        finish(ax, category)
    axes[0].set_ylabel("Conditional acceptance")
    return axes


def plot_thresholds(comparison: Comparison, axes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Draw what a static confidence threshold verifies, one column of panels per category.

    Rows: accepted and rejected draft tokens per round, and the accepted share of verified ones.
    Fig. 5 of arXiv 2607.05147, whose counts include the bonus; these do not.
    """
    for row, (column, label, scale) in zip(axes, _SWEPT, strict=True):
        for ax, category in zip(row, comparison.categories, strict=True):
            for name, look, _ in _looks(comparison):
                rows = _rows(comparison.thresholds, name, category)
                ax.plot(rows["threshold"], scale * rows[column], markevery=4, **look)
            finish(ax)
        row[0].set_ylabel(label)
    for ax in axes.flat:
        ax.set_ylim(bottom=0.0)
    for ax, category in zip(axes[0], comparison.categories, strict=True):
        ax.set_title(category, loc="left")
    for ax in axes[-1]:
        ax.set_xlabel("Confidence threshold")
    return axes


def save_acceptance_lengths(comparison: Comparison, path: str | Path) -> list[Path]:
    """Write the picture of acceptance lengths; return both paths."""
    width = 1.6 + 0.35 * max(3, len(comparison.acceptance_length) / 3)
    with house_figure(width + 2.2, _height(comparison, 3.6)) as figure:
        plot_acceptance_lengths(comparison, figure.subplots())
        _legend(figure, comparison, _BARS, **_NO_LINE)
        return write_figure(figure, path)


def save_conditional(comparison: Comparison, path: str | Path) -> list[Path]:
    """Write the picture of conditional acceptance; return both paths."""
    panels = len(comparison.categories)
    with house_figure(2.3 * panels + 2.4, _height(comparison, 3.0)) as figure:
        axes = figure.subplots(1, panels, sharex=True, sharey=True, squeeze=False)[0]
        plot_conditional(comparison, list(axes))
        _legend(figure, comparison, f"{_BARS}\nnot shown: < {FEW} rounds")
        return write_figure(figure, path)


def save_thresholds(comparison: Comparison, path: str | Path) -> list[Path]:
    """Write the picture of the threshold sweep; return both paths."""
    panels = len(comparison.categories)
    with house_figure(2.3 * panels + 2.4, _height(comparison, 7.0)) as figure:
        axes = figure.subplots(3, panels, sharex=True, sharey="row", squeeze=False)
        plot_thresholds(comparison, axes)
        _legend(figure, comparison, without=comparison.without_confidence)
        return write_figure(figure, path)


def save_drafters(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write all pictures of a comparison into a folder: that of thresholds if there are any."""
    written = save_acceptance_lengths(comparison, Path(folder) / "acceptance_length.png")
    written += save_conditional(comparison, Path(folder) / "conditional.png")
    if len(comparison.thresholds):
        written += save_thresholds(comparison, Path(folder) / "thresholds.png")
    return written


def _looks(
    comparison: Comparison, width: float = 0.0
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Give each recording's name, look and place beside the others within `width`."""
    styles = drafter_styles(comparison.recordings)
    for index, (name, style) in enumerate(styles.items()):
        look = {**style.look(), "linewidth": 1.4, "markersize": 5.0, "markeredgewidth": 0.9}
        yield name, look, width * ((index + 0.5) / len(styles) - 0.5)


def _rows(table: pd.DataFrame, name: str, category: str | None = None) -> pd.DataFrame:
    rows = table[table["recording"] == name]
    return rows if category is None else rows[rows["category"] == category]


def _draw(ax: Axes, x: Any, y: pd.Series[Any], error: pd.Series[Any], look: dict[str, Any]) -> None:
    ax.errorbar(x, y, yerr=Z95 * error.fillna(0.0), elinewidth=0.9, **look)


def _legend(
    figure: Figure,
    comparison: Comparison,
    title: str | None = None,
    without: Sequence[str] = (),
    **change: Any,
) -> None:
    """Name the recordings to the right of all panels, but for some that are not drawn."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=name.replace(",", ",\n"), **look | change)
        for name, look, _ in _looks(comparison)
        if name not in without
    ]
    figure.legend(
        handles=handles, loc="outside right upper", frameon=False, handlelength=3.2,
        labelspacing=0.6, title=title, title_fontsize=8.0, alignment="left",
    )  # fmt: skip


def _height(comparison: Comparison, least: float) -> float:
    """Return inches enough for a legend that names every recording."""
    lines = comparison.recordings["recording"].str.count(",") + 1
    return max(least, 0.21 * lines.sum() + 0.9)
