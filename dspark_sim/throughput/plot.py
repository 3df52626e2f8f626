"""Picture of a profile: step time and SPS(B), the staircase, the measured points, the cliff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.throughput.axes import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    VERMILION,
    legend_below,
    log_axis,
    profile_figure,
    save_figure,
    size_grid,
    token_axis,
)
from dspark_sim.throughput.lookup import Curve
from dspark_sim.throughput.summary import default_draft_len, find_dips

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from dspark_sim.throughput.profile import EngineProfile

_STEPS = {
    "captured": "steps-pre",
    "floor": "steps-post",
    "held": "default",
    "eager": "default",
    "linear": "default",
}
_BEYOND = {"held": "eager, held at its first size", "eager": "eager, interpolated"}


def plot_profile(
    profile: EngineProfile,
    path: str | Path,
    num_requests: int | None = None,
    draft_len: int | None = None,
) -> list[Path]:
    """Draw step time and steps per second against batch tokens; write PNG and SVG.

    Parameters
    ----------
    profile : EngineProfile
    path : str or Path
        Where to write; both suffixes are written whatever suffix it has.
    num_requests, draft_len : int, optional
        Adds a line with what R requests cost besides verification: drafting (by default the
        longest measured length) and α(R).

    Returns
    -------
    list of Path
        The PNG and the SVG. Drawing a profile twice gives identical bytes.
    """
    with profile_figure(11.5, 4.8) as figure:
        draw_profile(profile, figure, num_requests, draft_len)
        return save_figure(figure, path)


def draw_profile(
    profile: EngineProfile,
    figure: Figure,
    num_requests: int | None = None,
    draft_len: int | None = None,
) -> tuple[Axes, Axes]:
    """Draw both panels on a matplotlib figure and return their axes."""
    left, right = figure.subplots(1, 2)
    length = default_draft_len(profile) if draft_len is None else draft_len
    more = None if num_requests is None else _requests_label(profile, num_requests, length)
    for axes, as_rate in ((left, False), (right, True)):
        base = Line(profile, 0, 0, as_rate)
        base.draw_band(axes, BLUE)
        base.draw(axes, BLUE, VERMILION, _base_label(profile), explain=True)
        base.draw_points(axes)
        _mark_dips(base, axes)
        if num_requests is not None and more:
            Line(profile, num_requests, length, as_rate).draw(axes, GREEN, GREEN, more)
        _finish_axes(profile, axes, as_rate)
        _mark_cliff(profile, axes, with_text=not as_rate)
    left.set_title("Step time", loc="left")
    left.set_ylabel("ms per step")
    right.set_title("SPS(B) = 1 / step time", loc="left")
    right.set_ylabel("steps per second")
    legend_below(figure, left)
    setup = f"{profile.model} on {profile.num_gpus} × {profile.gpu}, {profile.engine}"
    figure.suptitle(f"{profile.name}: {setup}", x=0.01, ha="left", fontsize=11)
    return left, right


def _base_label(profile: EngineProfile) -> str:
    overhead = f" + overhead ({profile.overhead_ms:.3g} ms)" if profile.overhead_ms else ""
    rule = {"captured": "next captured size", "linear": "interpolated", "floor": "size below"}
    return f"verify[B], {rule[profile.lookup]}{overhead}"


def _requests_label(profile: EngineProfile, num_requests: int, length: int) -> str:
    """Name what R requests add; nothing where the profile has no such terms."""
    alpha = "" if profile.requests is None else f" + α(R = {num_requests})"
    drafts = length and profile.draft is not None
    draft = f" + draft[R = {num_requests}, {length} tokens]" if drafts else ""
    return f"the same{draft}{alpha}" if draft or alpha else ""


@dataclass(frozen=True)
class Line:
    """Step time (or its inverse) against batch tokens for a fixed number of requests."""

    profile: EngineProfile
    num_requests: int
    draft_len: int
    as_rate: bool

    def value(self, at: NDArray[np.int64]) -> NDArray[np.float64]:
        """Evaluate the line: ms, or steps per second."""
        ms = self.profile.step_ms(self.num_requests, at, 0, self.num_requests, self.draft_len)
        return 1000.0 / ms if self.as_rate else ms

    def pieces(self) -> dict[str, NDArray[np.int64]]:
        """Return the sizes to draw by how they are read: staircases at their steps only.

        "captured" and "floor" are staircases; "held" (eager, below the first eager size), "eager"
        and "linear" are lines.
        """
        profile, grid = self.profile, size_grid(self.profile)
        sizes = profile.verify_points["batch_tokens"].to_numpy()
        if profile.lookup == "linear":
            return {"linear": grid}
        if profile.lookup == "floor":
            return {"floor": sizes}
        eager = profile.regime(sizes) == "eager"
        first = sizes[eager][:1]
        held = grid[profile.clamped(grid)]
        parts = {
            "captured": np.unique(np.append(grid[0], sizes[~eager])),
            "held": np.append(held[:1], first) if len(held) else held,
            "eager": grid[grid >= first[0]] if len(first) else first,
        }
        return {name: at for name, at in parts.items() if len(at)}

    def draw(
        self, axes: Axes, colour: str, eager_colour: str, label: str, explain: bool = False
    ) -> None:
        """Draw the captured part, the held part (dotted) and the eager part.

        `explain` puts the eager parts into the legend.
        """
        for name, at in self.pieces().items():
            beyond = name in ("held", "eager")
            axes.plot(
                at,
                self.value(at),
                color=eager_colour if beyond else colour,
                linestyle=":" if name == "held" else "-",
                drawstyle=_STEPS[name],
                linewidth=1.6,
                label=label if not beyond else _BEYOND[name] if explain else None,
            )

    def draw_band(self, axes: Axes, colour: str, label: str | None = "p10 to p90") -> None:
        """Shade p10 to p90 of the measurement, read by the rule that reads the line."""
        points = self.profile.verify_points.dropna(subset=["p10_ms", "p90_ms"])
        if points.empty:
            return
        sizes, limit = points["batch_tokens"].to_numpy(), self.profile.capture_limit
        pieces = self.pieces()
        if "held" in pieces and "eager" in pieces:
            pieces["eager"] = np.append(pieces.pop("held")[0], pieces["eager"])
        for name, at in pieces.items():
            rest = self.profile.step_ms(self.num_requests, at, 0, self.num_requests, self.draft_len)
            rest = rest - self.profile.verify_ms(at)
            ends = []
            for column in ("p10_ms", "p90_ms"):
                curve = Curve(sizes, points[column].to_numpy(), self.profile.lookup, limit)
                ends.append(np.where(curve.extended(at), np.nan, curve.cost_ms(at)) + rest)
            low, high = (1000.0 / end for end in ends[::-1]) if self.as_rate else ends
            step: Any = {"captured": "pre", "floor": "post"}.get(name)
            axes.fill_between(
                at, low, high, step=step, color=colour, alpha=0.22, linewidth=0, label=label
            )
            label = None

    def draw_points(self, axes: Axes) -> None:
        """Draw the sizes that the table holds."""
        at = self.profile.verify_points["batch_tokens"].to_numpy()
        axes.plot(
            at,
            self.value(at),
            linestyle="none",
            marker="o",
            markersize=2.2,
            color="black",
            label="sizes in verify.csv",
            zorder=3,
        )


def _mark_dips(line: Line, axes: Axes) -> None:
    """Mark the sizes that cost clearly less than the size before."""
    dips = find_dips(line.profile)
    if not len(dips):
        return
    axes.plot(
        dips,
        line.value(dips) * (1.07 if line.as_rate else 0.93),
        linestyle="none",
        marker="^" if not line.as_rate else "v",
        markersize=5,
        color=PURPLE,
        label="dip: 2 % cheaper than the size before, or more",
        zorder=4,
    )


def _finish_axes(profile: EngineProfile, axes: Axes, as_rate: bool) -> None:
    token_axis(axes, profile.token_range[1])
    low, high = axes.dataLim.intervaly
    if not as_rate and high > 4 * low:
        log_axis(axes, low, high)
    else:
        axes.set_ylim(0, high * 1.08)


def _mark_cliff(profile: EngineProfile, axes: Axes, with_text: bool) -> None:
    """Shade what runs eager and say what the first eager token costs."""
    limit, last = profile.capture_limit, profile.token_range[1]
    if profile.lookup != "captured" or limit is None or limit >= last:
        return
    axes.axvline(limit, color=VERMILION, linewidth=0.8, linestyle="--")
    axes.axvspan(limit, axes.get_xlim()[1], color=VERMILION, alpha=0.06, linewidth=0)
    for text, side, shift in (("captured", "right", -5), ("eager", "left", 5)):
        axes.annotate(
            text,
            xy=(limit, 0.0 if with_text else 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(shift, 5 if with_text else -5),
            textcoords="offset points",
            ha=side,
            va="bottom" if with_text else "top",
            fontsize=9,
            color=GREY,
        )
    if not with_text:
        return
    before, after = profile.step_ms(0, np.array([limit, limit + 1]))
    text = (
        f"capture limit {limit:,}: one token more\n"
        f"costs {after:.1f} ms instead of {before:.1f} ({after / before:.1f}×)"
    )
    axes.annotate(
        text,
        xy=(limit, after),
        xytext=(-26, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=9,
        color=VERMILION,
        arrowprops={"arrowstyle": "->", "color": VERMILION},
    )
