"""A league of policies: each against the best fixed length and the best published rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from dspark_sim.core import UserError, parse_spec
from dspark_sim.policies import is_lossless
from dspark_sim.study.seeds import aggregate, t_quantile, tidy

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = ("forecast",)
"""Families of our own: not among the published rules."""
METRIC = "tok_s_gpu"
KEPT = ("tok_s_user", "acceptance_length", "verify_budget", "draft_budget")


def league(runs: pd.DataFrame) -> pd.DataFrame:
    """Rank the policies of a sweep at every concurrency, on the same requests and luck.

    Parameters
    ----------
    runs
        One row per policy, concurrency and seed, as from `sweep`, all of one engine and traffic.

    Returns
    -------
    DataFrame
        One row per concurrency and policy, by `tok_s_gpu` (mean over seeds) from the highest:
        `lossless`, `n_seeds`, `tok_s_gpu_ci95`; the lossless policies with the highest mean among
        the fixed lengths (`best_fixed`, 0 = `none` included) and among all published ones
        (`best_published`), and how much this one gains on each: `over_fixed_pct`,
        `over_published_pct`, means over seeds of the paired gain in percent, with the half widths
        of their 95 % t intervals (`_ci95`). Both rivals are chosen after the fact, in their favour.

    Raises
    ------
    UserError
        At some concurrency there is no fixed length to compare with.
    """
    frame, means = tidy(runs), aggregate(runs)
    tables = []
    for load in sorted(frame["concurrency"].dropna().astype(int).unique().tolist()):
        cell = frame[frame["concurrency"] == load]
        rates = cell.pivot_table(METRIC, "policy", "seed", sort=False)
        rows = means[means["concurrency"] == load].set_index("policy")
        table = rows[["n_seeds", METRIC, f"{METRIC}_ci95"]].copy()
        names = [str(policy) for policy in table.index]
        table.insert(0, "lossless", [is_lossless(policy) for policy in names])
        groups = {
            "fixed": [policy for policy in names if _is_fixed(policy)],
            "published": [p for p in names if is_lossless(p) and parse_spec(p)[0] not in OWN],
        }
        for name, members in groups.items():
            rival = _best(rates, members, load)
            table[f"best_{name}"] = rival
            gains = 100.0 * (rates / rates.loc[rival] - 1.0)
            table[f"over_{name}_pct"] = gains.mean(axis=1)
            width = gains.sem(axis=1) * t_quantile(gains.count(axis=1) - 1.0, 0.975)
            table[f"over_{name}_ci95"] = width
        table[list(KEPT)] = rows[list(KEPT)]
        table.insert(0, "concurrency", load)
        tables.append(table.sort_values(METRIC, ascending=False, kind="stable").reset_index())
    if not tables:
        raise UserError("a league needs closed loops: give concurrencies")
    return pd.concat(tables, ignore_index=True)


def _is_fixed(policy: str) -> bool:
    """Whether it always drafts and verifies the same number of tokens, or none."""
    name, _, keywords = parse_spec(policy)
    return name == "none" or (name == "fixed" and not keywords)


def _best(rates: pd.DataFrame, policies: Sequence[str], load: int) -> str:
    if not policies:
        raise UserError(f"the sweep holds no fixed length at concurrency {load} to compare with")
    return str(rates.loc[list(policies)].mean(axis=1).idxmax())
