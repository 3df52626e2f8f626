"""Who is best in every cell of the league, and where `forecast` wins and loses against it.

python -m benchmarks.forecast [--league docs/league/league.csv]

Each row is a profile, a case and a load: the best fixed length, the best published lossless rule
and its gain on that length, and what `forecast` gains on the rule, all paired by seed, with 95 %
intervals. The rivals are chosen after the fact, in favour of the published rules.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.league import DOMAINS

HEAD = (
    "| case | c | best fixed | best published rule | its gain on fixed, % | tok/s/GPU "
    "| `forecast` gains, % | |"
)
ROW = "| {} | {} | `{}` | `{}` | {:+.1f} ± {:.1f} | {:,.1f} | {:+.2f} ± {:.2f} | {} |"
KEYS = ["profile", "case", "concurrency"]


def rows_of(league: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: the best published rule's, with what `forecast` gains on it."""
    own = league[league["policy"] == "forecast"].set_index(KEYS)
    best = league[league["policy"] == league["best_published"]].set_index(KEYS)
    best["gain"], best["half"] = own["over_published_pct"], own["over_published_ci95"]
    best["verdict"] = ""
    best.loc[best["gain"] > best["half"], "verdict"] = "win"
    best.loc[best["gain"] < -best["half"], "verdict"] = "loss"
    return best.reset_index()


def main() -> None:
    """Print a table per profile, and how often which side wins."""
    parser = argparse.ArgumentParser("python -m benchmarks.forecast")
    parser.add_argument("--league", type=Path, default=Path("docs/league/league.csv"))
    table = rows_of(pd.read_csv(parser.parse_args().league))
    for profile, rows in table.groupby("profile", sort=False):
        print(f"`{profile}`:", "", HEAD, "|---|---|---|---|---|---|---|---|", sep="\n")
        for row in rows.itertuples():
            fixed = (row.over_fixed_pct, row.over_fixed_ci95)
            cells = (row.case, row.concurrency, row.best_fixed, row.policy, *fixed)
            print(ROW.format(*cells, row.tok_s_gpu, row.gain, row.half, row.verdict))
        print()
    plain = table["case"].isin(DOMAINS)
    for name, part in (("domains", table[plain]), ("hard cases", table[~plain])):
        wins, losses = ((part["verdict"] == kind).sum() for kind in ("win", "loss"))
        print(f"{name}: {wins} wins, {losses} losses, {len(part) - wins - losses} ties")


if __name__ == "__main__":
    main()
