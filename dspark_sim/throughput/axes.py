"""What pictures of profiles share: figure, file, token axis, log axis, the sizes to evaluate."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from dspark_sim.throughput.profile import EngineProfile

# Okabe-Ito, safe for colour-blind readers.
BLUE, VERMILION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000")
TOKENS = "batch tokens in the step (anchors + drafts + prefill)"
_DENSE = 2048


@contextmanager
def profile_figure(width: float, height: float) -> Iterator[Figure]:
    """Give a figure (inches) whose look does not depend on the user's matplotlibrc."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    look = {"svg.hashsalt": "dspark-sim", "font.size": 10}
    with matplotlib.style.context(["default", look]):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write PNG and SVG beside each other, whole or not at all; equal pictures give equal bytes."""
    written = []
    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix in (".png", ".svg") else stem
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        target = stem.with_name(stem.name + suffix)
        with whole_file(target) as aside:
            figure.savefig(aside, dpi=140, metadata=metadata)
        written.append(target)
    return written


def size_grid(profile: EngineProfile) -> NDArray[np.int64]:
    """Every size up to 2,048, then sizes that still look continuous on a log axis."""
    first, last = profile.token_range
    dense = np.arange(first, min(last, _DENSE) + 1)
    sparse = np.geomspace(_DENSE, last, 400).astype(np.int64) if last > _DENSE else dense[-1:]
    return np.unique(np.concatenate([dense, sparse, [last]]))


def token_axis(axes: Axes, last: int) -> None:
    """Make x the batch tokens from 1 to `last`, doubling, and leave the frame open."""
    powers = range(0, last.bit_length(), 1 if last <= 1024 else 2)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**power for power in powers], [f"{2**power:,}" for power in powers])
    axes.set_xlim(0.8, last * 1.25)
    axes.set_xlabel(TOKENS)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_axis(axes: Axes, low: float, high: float) -> None:
    """Make y logarithmic with plain ticks (1, 2, 5, 10, ...)."""
    axes.set_yscale("log")
    bottom, top = low / 1.2, high * 1.2
    decades = range(int(np.floor(np.log10(bottom))), int(np.ceil(np.log10(top))))
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    shown = [tick for tick in ticks if bottom <= tick <= top]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_yticks([], minor=True)
    axes.set_ylim(bottom, top)


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Put the legend of one panel below the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=9
    )
