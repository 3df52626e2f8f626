"""One picture of several profiles: step time, SPS(B), additive residuals, gap to the roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.throughput.additive import WRONG, additive_form
from dspark_sim.throughput.axes import (
    COLOURS,
    GREY,
    legend_below,
    log_axis,
    profile_figure,
    save_figure,
    token_axis,
)
from dspark_sim.throughput.plot import Line
from dspark_sim.throughput.summary import default_draft_len

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dspark_sim.throughput.profile import EngineProfile

_PANEL = (5.75, 4.4)


def plot_profiles(
    profiles: Sequence[EngineProfile],
    path: str | Path,
    num_requests: int | None = None,
    additive: bool = False,
) -> list[Path]:
    """Draw profiles over each other against batch tokens; write PNG and SVG.

    Parameters
    ----------
    profiles : sequence of EngineProfile
        Up to seven, with names of their own.
    path : str or Path
    num_requests : int, optional
        Adds what R requests cost besides verification: drafting the longest measured length, α(R).
    additive : bool
        Adds a panel with the error of the additive form at every measured point.

    Returns
    -------
    list of Path
        The PNG and the SVG. A panel with measured time over roofline appears when a profile has
        `roofline_ms`.
    """
    names = [profile.name for profile in profiles]
    if not 1 <= len(profiles) <= len(COLOURS) or len(set(names)) < len(names):
        raise UserError(
            f"1 to {len(COLOURS)} profiles with different names can be compared, "
            f"got {', '.join(names) or 'none'}"
        )
    panels = [_draw_step_time, _draw_rate]
    panels += [_draw_residuals] if additive else []
    panels += [_draw_roofline] if any(_limits(one).any() for one in profiles) else []
    rows = -(-len(panels) // 2)
    with profile_figure(2 * _PANEL[0], rows * _PANEL[1] + 0.4) as figure:
        draw_panels(figure, profiles, panels, num_requests)
        return save_figure(figure, path)


def draw_panels(
    figure: Figure,
    profiles: Sequence[EngineProfile],
    panels: Sequence[Callable[[Axes, Sequence[EngineProfile], int | None], None]],
    num_requests: int | None,
) -> None:
    """Draw the panels, two a row, with one legend."""
    grid = figure.subplots(-(-len(panels) // 2), 2, squeeze=False).ravel()
    for axes, draw in zip(grid, panels, strict=False):
        draw(axes, profiles, num_requests)
        token_axis(axes, max(one.token_range[1] for one in profiles))
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    legend_below(figure, grid[0], columns=3)


def _lines(
    profiles: Sequence[EngineProfile], num_requests: int | None, as_rate: bool
) -> list[Line]:
    held = num_requests or 0
    return [Line(one, held, default_draft_len(one) if held else 0, as_rate) for one in profiles]


def _label(profile: EngineProfile, num_requests: int | None) -> str:
    setup = f"{profile.name}: {profile.num_gpus} × {profile.gpu}"
    return setup if num_requests is None else f"{setup}, {num_requests} requests"


def _draw_step_time(
    axes: Axes, profiles: Sequence[EngineProfile], num_requests: int | None
) -> None:
    _draw_lines(axes, profiles, num_requests, as_rate=False)
    axes.set_title("Step time, band p10 to p90", loc="left")
    axes.set_ylabel("ms per step")
    low, high = axes.dataLim.intervaly
    log_axis(axes, low, high)


def _draw_rate(axes: Axes, profiles: Sequence[EngineProfile], num_requests: int | None) -> None:
    _draw_lines(axes, profiles, num_requests, as_rate=True)
    axes.set_title("SPS(B) = 1 / step time", loc="left")
    axes.set_ylabel("steps per second")
    axes.set_ylim(0, axes.dataLim.intervaly[1] * 1.08)


def _draw_lines(
    axes: Axes, profiles: Sequence[EngineProfile], num_requests: int | None, as_rate: bool
) -> None:
    for line, colour in zip(_lines(profiles, num_requests, as_rate), COLOURS, strict=False):
        line.draw_band(axes, colour, label=None)
        line.draw(axes, colour, colour, _label(line.profile, num_requests))


def _draw_residuals(
    axes: Axes, profiles: Sequence[EngineProfile], num_requests: int | None
) -> None:
    """Draw the error of the additive form at every measured point."""
    axes.axhspan(-100 * WRONG, 100 * WRONG, color=GREY, alpha=0.12, linewidth=0)
    for profile, colour in zip(profiles, COLOURS, strict=False):
        rows = additive_form(profile).residuals
        axes.plot(
            rows["batch_tokens"],
            100.0 * rows["error"],
            linestyle="none",
            marker="o",
            markersize=3,
            color=colour,
            alpha=0.7,
        )
    reach = max(np.abs(axes.dataLim.intervaly).max() * 1.1, 200 * WRONG)
    axes.set_ylim(-reach, reach)
    axes.set_title(f"Error of the additive form (grey: within {WRONG:.0%})", loc="left")
    axes.set_ylabel("fitted / measured - 1, %")


def _limits(profile: EngineProfile) -> np.ndarray:
    """Say which rows state their roofline."""
    if "roofline_ms" not in profile.verify:
        return np.zeros(len(profile.verify), dtype=bool)
    return np.isfinite(profile.verify["roofline_ms"].to_numpy())


def _draw_roofline(axes: Axes, profiles: Sequence[EngineProfile], num_requests: int | None) -> None:
    """Draw measured time over roofline at every row that states it."""
    for profile, colour in zip(profiles, COLOURS, strict=False):
        rows = profile.verify[_limits(profile)]
        if rows.empty:
            continue
        gap = rows["ms"] / rows["roofline_ms"]
        axes.plot(
            rows["batch_tokens"], gap, linestyle="none", marker="o", markersize=3, color=colour
        )
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    low, high = axes.dataLim.intervaly
    log_axis(axes, min(low, 1.0), max(high, 2.0))
    axes.set_title("Measured time over the roofline's (1: the physical limit)", loc="left")
    axes.set_ylabel("ms / roofline ms")
