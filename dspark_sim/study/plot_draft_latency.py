"""Picture of draft time by draft length, beside the target pass that verifies the block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.study.drafter_style import drafter_colour
from dspark_sim.study.figure import finish, house_figure, legend, write_figure

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd


def save_draft_latency(table: pd.DataFrame, path: str | Path, title: str = "") -> list[Path]:
    """Draw ms per drafted block against draft length, p10 to p90 as bars; write PNG and SVG.

    Parameters
    ----------
    table
        Columns drafter, draft_len, requests, draft_ms, draft_p10_ms, draft_p90_ms, verify_ms.
    """
    with house_figure(6.4, 3.4) as figure:
        ax = figure.subplots()
        verify = table.groupby("draft_len")["verify_ms"].median()
        ax.plot(verify.index, verify, "--", color="#7F7F7F", marker="x", label="target pass")
        for name, rows in table.groupby("drafter", sort=False):
            colour, marker = drafter_colour(str(name))
            middle = rows["draft_ms"]
            bars = (middle - rows["draft_p10_ms"], rows["draft_p90_ms"] - middle)
            ax.errorbar(
                rows["draft_len"], middle, bars, color=colour, marker=marker, capsize=2,
                label=str(name),
            )  # fmt: skip
        ax.set_ylim(bottom=0.0)
        ax.set_xticks(sorted(table["draft_len"].unique()))
        ax.set_xlabel("Draft length (tokens)")
        ax.set_ylabel("Time per step (ms)")
        finish(
            ax,
            title
            or f"{int(table['requests'].iloc[0])} requests drafting together (bars: p10 to p90)",
        )
        legend(ax)
        return write_figure(figure, path)
