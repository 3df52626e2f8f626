"""Picture of learning curves: a drafter's held-out acceptance rate while it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.study.drafter_style import drafter_colour, drafter_of
from dspark_sim.study.figure import finish, house_figure, legend, write_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUFFIX = "-curve"


def read_curve(path: str | Path) -> pd.DataFrame:
    """Read a learning curve: step, loss, c1 .. cγ (acceptance rate by draft position)."""
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a learning curve ({error})") from None
    missing = {"step", "c1"} - set(frame)
    if missing or frame.empty:
        what = f"column '{min(missing)}' is missing" if missing else "no row"
        raise UserError(f"{path}: {what}; drafter train writes step, loss, c1, …")
    return frame


def save_learning_curves(curves: Sequence[str | Path], path: str | Path) -> list[Path]:
    """Draw position 1 and the mean of all positions against steps; write PNG and SVG.

    Parameters
    ----------
    curves
        CSV files as `drafter train` leaves them, named DRAFTER-curve.csv.
    """
    with house_figure(7.6, 3.2) as figure:
        first, mean = figure.subplots(1, 2, sharey=True)
        for file in map(Path, curves):
            frame = read_curve(file)
            name = file.stem.removesuffix(_SUFFIX)
            colour, marker = drafter_colour(drafter_of(name))
            look = {"color": colour, "marker": marker, "markersize": 3.0, "label": name}
            first.plot(frame["step"], frame["c1"], **look)
            mean.plot(frame["step"], frame.filter(regex=r"^c\d+$").mean(axis=1), **look)
        for ax, title in ((first, "Draft position 1"), (mean, "Mean of all positions")):
            ax.set_xlabel("Training step")
            finish(ax, title)
        first.set_ylabel("Acceptance rate on held-out answers")
        legend(mean)
        return write_figure(figure, path)
