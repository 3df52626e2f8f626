"""Picture of a profile: step time and SPS(B), the staircase, the measured points, the cliff."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import whole_file
from dspark_sim.throughput.summary import default_draft_len

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from dspark_sim.throughput.profile import EngineProfile

# Okabe-Ito, safe for colour-blind readers.
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
_DENSE = 2048
_STEPS = {"captured": "steps-pre", "linear": "default", "floor": "steps-post"}


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
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "dspark-sim", "font.size": 10}):
        figure = Figure(figsize=(11.5, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        draw_profile(profile, figure, num_requests, draft_len)
        written = []
        stem = Path(path)
        stem = stem.with_suffix("") if stem.suffix in (".png", ".svg") else stem
        for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
            target = stem.with_name(stem.name + suffix)
            with whole_file(target) as aside:
                figure.savefig(aside, dpi=150, metadata=metadata)
            written.append(target)
    return written


def draw_profile(
    profile: EngineProfile,
    figure: Figure,
    num_requests: int | None = None,
    draft_len: int | None = None,
) -> tuple[Axes, Axes]:
    """Draw both panels on a matplotlib figure and return their axes."""
    left, right = figure.subplots(1, 2)
    length = default_draft_len(profile) if draft_len is None else draft_len
    for axes, as_rate in ((left, False), (right, True)):
        base = _Line(profile, 0, 0, as_rate)
        base.draw(axes, BLUE, VERMILION, _base_label(profile))
        base.draw_points(axes)
        if num_requests is not None:
            label = _requests_label(profile, num_requests, length)
            _Line(profile, num_requests, length, as_rate).draw(axes, GREEN, GREEN, label)
        _finish_axes(profile, axes, as_rate)
        _mark_cliff(profile, axes, with_text=not as_rate)
    left.set_title("Step time", loc="left")
    left.set_ylabel("ms per step")
    right.set_title("SPS(B) = 1 / step time", loc="left")
    right.set_ylabel("steps per second")
    left.legend(loc="upper left", frameon=False, fontsize=9)
    setup = f"{profile.model} on {profile.num_gpus} × {profile.gpu}, {profile.engine}"
    figure.suptitle(f"{profile.name}: {setup}", x=0.01, ha="left", fontsize=11)
    return left, right


def _base_label(profile: EngineProfile) -> str:
    overhead = f" + overhead ({profile.overhead_ms:.3g} ms)" if profile.overhead_ms else ""
    rule = {"captured": "next captured size", "linear": "interpolated", "floor": "size below"}
    return f"verify[B], {rule[profile.lookup]}{overhead}"


def _requests_label(profile: EngineProfile, num_requests: int, length: int) -> str:
    alpha = "" if profile.requests is None else f" + α(R = {num_requests})"
    draft = f" + draft[R = {num_requests}, {length} tokens]" if length else ""
    return f"the same{draft}{alpha}"


@dataclass(frozen=True)
class _Line:
    """Step time (or its inverse) against batch tokens for a fixed number of requests."""

    profile: EngineProfile
    num_requests: int
    draft_len: int
    as_rate: bool

    def value(self, at: NDArray[np.int64]) -> NDArray[np.float64]:
        """Evaluate the line: ms, or steps per second."""
        ms = self.profile.step_ms(self.num_requests, at, 0, self.num_requests, self.draft_len)
        return 1000.0 / ms if self.as_rate else ms

    def draw(self, axes: Axes, captured_colour: str, eager_colour: str, label: str) -> None:
        """Draw the captured part, the clamped part (dashed) and the eager part."""
        grid = _grid(self.profile)
        eager = self.profile.regime(grid) == "eager"
        clamped = self.profile.clamped(grid)
        steps = _STEPS[self.profile.lookup]
        parts = (
            (~eager, captured_colour, "-", steps, label),
            (clamped, eager_colour, ":", "default", "eager, held at its first point"),
            (eager & ~clamped, eager_colour, "-", "default", "eager, interpolated"),
        )
        for where, colour, style, drawstyle, text in parts:
            shown = text if self.num_requests == 0 or text == label else None
            if where.any():
                axes.plot(
                    grid[where],
                    self.value(grid[where]),
                    color=colour,
                    linestyle=style,
                    drawstyle=drawstyle,
                    linewidth=1.6,
                    label=shown,
                )

    def draw_points(self, axes: Axes) -> None:
        """Draw the table's points, with their p10 to p90 where it is known."""
        table = self.profile.verify
        at = table["batch_tokens"].to_numpy()
        middle = self.value(at)
        shift = self.profile.step_ms(0, at) - table["ms"].to_numpy()
        ends = np.stack([table["p10_ms"].to_numpy(), table["p90_ms"].to_numpy()]) + shift
        ends = np.sort(1000.0 / ends, axis=0) if self.as_rate else ends
        bars = None if np.isnan(ends).all() else np.abs(ends - middle)
        axes.errorbar(
            at,
            middle,
            yerr=bars,
            fmt="o",
            markersize=2.5,
            color="black",
            ecolor=GREY,
            elinewidth=0.8,
            label="points of verify.csv" + ("" if bars is None else ", bars p10 to p90"),
            zorder=3,
        )


def _grid(profile: EngineProfile) -> NDArray[np.int64]:
    """Every size up to 2,048, then sizes that still look continuous on a log axis."""
    first, last = profile.token_range
    dense = np.arange(first, min(last, _DENSE) + 1)
    sparse = np.geomspace(_DENSE, last, 400).astype(np.int64) if last > _DENSE else dense[-1:]
    return np.unique(np.concatenate([dense, sparse, [last]]))


def _finish_axes(profile: EngineProfile, axes: Axes, as_rate: bool) -> None:
    last = profile.token_range[1]
    powers = range(0, last.bit_length(), 1 if last <= 1024 else 2)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**power for power in powers], [f"{2**power:,}" for power in powers])
    axes.set_xlim(0.8, last * 1.25)
    axes.set_xlabel("batch tokens in the step (anchors + drafts + prefill)")
    low, high = axes.dataLim.intervaly
    if not as_rate and high > 4 * low:
        _log_ms(axes, low, high)
    else:
        axes.set_ylim(0, high * (1.08 if as_rate else 1.45))
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _log_ms(axes: Axes, low: float, high: float) -> None:
    """Give a log axis plain ticks (1, 2, 5, 10, ...) and room for the legend above the lines."""
    axes.set_yscale("log")
    bottom, top = low / 1.3, high * (high / low) ** 0.3 * 1.2
    decades = range(int(np.floor(np.log10(bottom))), int(np.ceil(np.log10(top))))
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    shown = [tick for tick in ticks if bottom <= tick <= high * 1.1]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_yticks([], minor=True)
    axes.set_ylim(bottom, top)


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
