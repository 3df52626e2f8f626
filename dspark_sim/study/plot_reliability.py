"""Picture of calibration: predicted against observed prefix survival, before and after scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.calibration import compare_calibration
from dspark_sim.acceptance.reliability import reliability_table
from dspark_sim.study.figure import finish, house_figure, write_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from dspark_sim.acceptance.calibration import Blocks
    from dspark_sim.acceptance.temperature import SequentialTemperatureScaling

POSITIONS = (1, 3, 5, 7)
"""Draft positions that arXiv 2607.05147 shows in Fig. 6."""
BEFORE, AFTER = ("before", "#D55E00", "o", "--"), ("after", "#0072B2", "s", "-")
FEW = 10
"""Bins of fewer blocks are not drawn; the ECE counts them."""
_AREA = 180.0  # square points that all blocks together have


def save_reliability(
    blocks: Blocks,
    scaling: SequentialTemperatureScaling,
    path: str | Path,
    positions: Sequence[int] = POSITIONS,
    title: str | None = None,
) -> list[Path]:
    """Draw a reliability diagram per position, before and after temperatures; write PNG and SVG.

    Parameters
    ----------
    blocks
        Held-out blocks: none that the temperatures were fitted on.
    positions
        Draft positions, 1..γ; those beyond the block are left out.
    """
    shown = [k for k in positions if k <= blocks.confidence.shape[1]]
    with house_figure(2.6 * len(shown) + 0.3, 3.1 + 0.25 * bool(title)) as figure:
        axes = list(np.atleast_1d(figure.subplots(1, len(shown), sharex=True, sharey=True)))
        plot_reliability(blocks, scaling, axes, shown)
        if title:
            figure.suptitle(title)
        return write_figure(figure, path)


def plot_reliability(
    blocks: Blocks,
    scaling: SequentialTemperatureScaling,
    axes: Sequence[Axes],
    positions: Sequence[int] = POSITIONS,
) -> Sequence[Axes]:
    """Draw one panel per position: below the diagonal the drafter is over-confident.

    A point is a bin of width 0.05, its area the share of blocks in it; bins of few blocks are left
    out. ECE in percent, T the position's temperature.
    """
    table = compare_calibration(blocks, scaling).set_index("position")
    calibrated = scaling.apply(blocks.confidence)
    for ax, position in zip(axes, positions, strict=True):
        row = table.loc[position]
        ax.plot([0.0, 1.0], [0.0, 1.0], color="#9A9A9A", linewidth=0.9, zorder=1)
        for values, look in ((blocks.confidence, BEFORE), (calibrated, AFTER)):
            bins = reliability_table(values, blocks.accepted, position)
            _draw_bins(ax, bins, look, f"ECE {100 * row[f'ece_{look[0]}']:.1f} % {look[0]}")
        ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        ax.set_xlabel("Predicted survival")
        finish(ax, f"Position {position}: T = {row['temperature']:.2f}, AUC {row['auc_after']:.3f}")
        ax.legend(loc="upper left", frameon=False, handlelength=2.2, borderaxespad=0.1)
    axes[0].set_ylabel(f"Observed acceptance of the prefix\n(bins of {FEW} blocks or more)")
    return axes


def _draw_bins(ax: Axes, bins: pd.DataFrame, look: tuple[str, str, str, str], label: str) -> None:
    _, colour, marker, line = look
    bins = bins[bins["count"] >= FEW]
    x, y, count = (bins[name].to_numpy(dtype=float) for name in ("predicted", "observed", "count"))
    ax.plot(
        x, y, line, color=colour, marker=marker, markersize=2.5, linewidth=1.1, alpha=0.8,
        label=label, zorder=2,
    )  # fmt: skip
    area = _AREA * count / count.sum()
    ax.scatter(x, y, s=area, c=colour, marker=marker, alpha=0.75, linewidths=0.0, zorder=3)
