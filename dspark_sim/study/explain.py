"""Why one policy beats another: the engine's time per token, split into what it was spent on."""

from __future__ import annotations

import json
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.policies import is_lossless
from dspark_sim.simulator.metrics import PARTS as STEP_PARTS
from dspark_sim.study.folder import METRICS, finished
from dspark_sim.study.seeds import POINT, of_policy, over_seeds, tidy
from dspark_sim.study.sweep import read_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = (*STEP_PARTS, "idle")
TOTAL = "us_token"
_LEAST_SHARE = 0.05  # of a difference: smaller parts of it are not named


def explain_runs(sources: Sequence[str | Path]) -> pd.DataFrame:
    """Return the runs of sweeps and of single results, one row each, as a sweep's table.

    Raises
    ------
    UserError
        A folder holds neither, or one of them was made before times were split.
    """
    tables = [_read(Path(source)) for source in sources]
    return pd.concat(tables, ignore_index=True)


def _read(source: Path) -> pd.DataFrame:
    if not (source / "summary.json").is_file():
        return read_sweep(source)
    summary = finished(source)
    if summary is None:
        raise UserError(f"{source}: is no whole result of this version; run it again")
    scenario = json.loads((source / "config.json").read_text(encoding="utf-8"))["scenario"]
    identity = {key: scenario[key] for key in (*POINT, "seed")}
    row = {**identity, **{key: summary[key] for key in METRICS}}
    return pd.DataFrame([{key: nan if value is None else value for key, value in row.items()}])


def explain(runs: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """Split the time per token of every policy and load, and compare it part by part.

    Parameters
    ----------
    runs
        A sweep, as from `sweep` or `explain_runs`.
    baseline
        The policy to compare with; by default, at each load, the fastest lossless one.

    Returns
    -------
    DataFrame
        One row per load, policy and part, `part` = "total" first: `us_token` (µs of engine time
        per token given out; docs/metrics.md defines the parts), its `share` of the total,
        `against` (the policy compared with), `difference` (µs more than that, paired by seed) and
        the 95 % intervals of both; `n_seeds`.

    Raises
    ------
    UserError
        The sweep has no split times, or does not hold the baseline.
    """
    frame = tidy(runs)
    columns = [TOTAL, *(f"{TOTAL}_{part}" for part in PARTS)]
    for column in columns:
        if column not in frame.columns:
            raise UserError(f"the sweep lacks the column '{column}'; run it again to split times")
    keys = ["concurrency", "request_rate", "load"]
    names = {TOTAL: "total", **{f"{TOTAL}_{part}": part for part in PARTS}}
    frame["against"] = baseline or ""
    if baseline is None:
        for _, rows in frame.groupby(keys[:2], dropna=False):
            frame.loc[rows.index, "against"] = _fastest(rows)
    else:
        of_policy(frame, baseline)
    parts = frame.rename(columns=names)
    split = parts.melt([*POINT, "load", "seed", "against"], list(names.values()), "part", TOTAL)
    other = split[split["policy"] == split["against"]][[*keys, "seed", "part", TOTAL]]
    pairs = split.merge(other, "left", [*keys, "seed", "part"], suffixes=("", "_other"))
    pairs["difference"] = pairs[TOTAL] - pairs[f"{TOTAL}_other"]
    places = {part: place for place, part in enumerate(names.values())}
    pairs["place"], pairs["rank"] = pairs["part"].map(places), pd.factorize(pairs["policy"])[0]
    pairs = pairs.sort_values(["load", "request_rate", "rank", "place"], kind="stable")
    table = over_seeds(pairs, [*keys, "policy", "against", "part"], [TOTAL, "difference"], TOTAL)
    totals = table[TOTAL].where(table["part"] == "total").ffill()
    table.insert(list(table.columns).index(TOTAL) + 1, "share", table[TOTAL] / totals)
    return table


def _fastest(rows: pd.DataFrame) -> str:
    """Return the lossless policy with the least time per token, the fastest of all if none is."""
    means = rows.groupby("policy", sort=False)[TOTAL].mean()
    kept = means[[is_lossless(str(policy)) for policy in means.index]]
    return str((kept if len(kept) else means).idxmin())


def reasons(table: pd.DataFrame) -> list[str]:
    """Say of each comparison in one sentence which parts make the difference.

    Parts are named by size, up to 95 % of all that is gained and lost.
    """
    found = []
    for (_, policy, against), rows in table.groupby(
        ["load", "policy", "against"], dropna=False, sort=False
    ):
        by_part = rows.set_index("part")
        total: Any = by_part.loc["total"]
        if policy == against or isnan(total["difference"]):
            continue
        change = by_part["difference"].drop("total")
        change = change.reindex(change.abs().sort_values(ascending=False).index)
        least = _LEAST_SHARE * change.abs().sum()
        parts = ", ".join(f"{name} {us:+.3g}" for name, us in change.items() if abs(us) > least)
        whole = total[TOTAL] - total["difference"]
        width = "" if isnan(total["difference_ci95"]) else f" ± {total['difference_ci95']:.2g}"
        found.append(
            f"{_place(total)}{policy} takes {total[TOTAL]:.4g} µs per token, "
            f"{total['difference']:+.3g}{width} µs ({100 * total['difference'] / whole:+.1f} %) "
            f"against {against}: {parts or 'no difference'}"
        )
    return found


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per load and policy, the parts in µs per token as columns, absent ones out."""
    kept = table.loc[table.groupby("part")[TOTAL].transform(lambda us: us.abs().max()) > 0, :]
    keys = ["load", "policy"]
    rows = kept.pivot_table(TOTAL, keys, "part", sort=False, dropna=False, observed=True)
    return rows.reset_index().rename_axis(columns=None)


def _place(row: Any) -> str:
    if not isnan(row["concurrency"]):
        return f"concurrency {row['concurrency']:g}: "
    return "" if isnan(row["request_rate"]) else f"{row['request_rate']:g} req/s: "
