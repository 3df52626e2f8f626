"""The table under a sweep: every load, every policy, and what it achieved there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import unknown_name
from dspark_sim.policies import is_lossless
from dspark_sim.study.pareto import joint_frontier
from dspark_sim.study.seeds import aggregate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd


@dataclass(frozen=True)
class Column:
    """How one metric is shown: heading, decimals, and what it is multiplied by."""

    heading: str
    decimals: int
    scale: float = 1.0
    interval: bool = False


COLUMNS = {
    "tok_s_gpu": Column("tok/s/GPU", 1, interval=True),
    "tok_s_user": Column("tok/s/user", 1, interval=True),
    "acceptance_length": Column("accept len", 2),
    "verify_budget": Column("verify budget", 2),
    "wasted_fraction": Column("waste %", 1, 100.0),
    "eager_step_fraction": Column("eager %", 1, 100.0),
    "output_tok_s": Column("output tok/s", 1, interval=True),
    "draft_budget": Column("draft budget", 2),
    "batch_tokens": Column("batch tokens", 0),
}
DEFAULT_COLUMNS = tuple(COLUMNS)[:5]


def format_table(runs: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """Return a sweep as aligned text, one line per load and policy, means over seeds.

    `columns` names metrics of the sweep; by default throughput, interactivity, acceptance length
    (bonus included), verify budget (anchor included) and waste. Throughputs carry the half width
    of their 95 % interval where there are several seeds. `*` marks the joint frontier of all
    lossless policies.

    Raises
    ------
    UserError
        A column is no metric of the sweep.
    """
    means = aggregate(runs)
    metrics = [name.removesuffix("_ci95") for name in means.columns if name.endswith("_ci95")]
    names = DEFAULT_COLUMNS if columns is None else columns
    for name in names:
        if name not in metrics:
            raise unknown_name("column", name, metrics, "the sweep")
    means = means.sort_values(["load", "request_rate"], kind="stable").reset_index(drop=True)
    loads = [_load(row) for _, row in means.iterrows()]
    fresh = [index == 0 or load != loads[index - 1] for index, load in enumerate(loads)]
    cells = [
        [load if new else "" for load, new in zip(loads, fresh, strict=True)],
        [
            f"{policy} *" if mark else policy
            for policy, mark in zip(means["policy"], joint_frontier(means), strict=True)
        ],
    ]
    head = [_load_heading(means), "policy"]
    for name in names:
        column = COLUMNS.get(name, Column(name, 2))
        head.append(column.heading)
        cells.append(_cells(means[name], means[f"{name}_ci95"], column))
    lines = _align([head, *zip(*cells, strict=True)])
    for index in reversed(range(1, len(fresh))):
        if fresh[index]:
            lines.insert(index + 1, "")
    return "\n".join([*lines, "", *_notes(means)])


def _load_heading(means: pd.DataFrame) -> str:
    closed = means["concurrency"].notna()
    return "concurrency" if closed.all() else "load" if closed.any() else "req/s"


def _load(row: pd.Series[float]) -> str:
    if np.isnan(row["load"]):
        return "as traced"
    if np.isnan(row["concurrency"]) or np.isnan(row["request_rate"]):
        return f"{row['load']:g}"
    return f"{row['concurrency']:g} at {row['request_rate']:g}/s"


def _cells(values: pd.Series[float], halves: pd.Series[float], column: Column) -> list[str]:
    """Write one metric's column, intervals aligned among themselves."""
    texts = [_number(value * column.scale, column.decimals) for value in values]
    if not column.interval or halves.isna().all():
        return texts
    widths = [_number(half * column.scale, column.decimals) for half in halves]
    most = max(map(len, widths))
    return [f"{text} ±{width:>{most}}" for text, width in zip(texts, widths, strict=True)]


def _number(value: float, decimals: int) -> str:
    return "-" if np.isnan(value) else f"{value:,.{decimals}f}"


def _align(lines: Sequence[Sequence[str]]) -> list[str]:
    """Pad the cells: the policy to the left, everything else to the right."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    aligned = []
    for line in lines:
        load, policy, *rest = (f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True))
        aligned.append("  ".join([load, policy.strip().ljust(widths[1]), *rest]).rstrip())
    return aligned


def _notes(means: pd.DataFrame) -> list[str]:
    notes = ["* on the joint Pareto frontier of tok/s/GPU and tok/s/user"]
    if means["n_seeds"].max() > 1:
        notes.append(f"± 95 % interval over {means['n_seeds'].max()} seeds")
    return notes + [
        f"{policy} is not lossless: never on the frontier"
        for policy in means["policy"].unique()
        if not is_lossless(policy)
    ]
