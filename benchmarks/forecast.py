"""Where `forecast` wins and loses against the best published lossless rule, from the league.

python -m benchmarks.forecast [--league docs/league/league.csv]

Each row is a profile, a case and a load; the difference is paired by seed, with a 95 % interval.
The rival is chosen after the fact, in favour of the published rules: `python -m benchmarks.league`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.league import DOMAINS

HEAD = "| profile | case | c | best published rule | tok/s/GPU | `forecast` | difference, % | |"
ROW = "| `{}` | {} | {} | `{}` | {:,.4g} | {:,.4g} | {:+.2f} ± {:.2f} | {} |"


def rows_of(league: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: rival, both rates, the paired difference, and who wins surely."""
    own = league[league["policy"] == "forecast"].copy()
    keys = ["profile", "case", "concurrency"]
    rates = league.set_index([*keys, "policy"])["tok_s_gpu"]
    places = own[[*keys, "best_published"]].itertuples(index=False)
    own["rival_tok_s_gpu"] = [rates[tuple(place)] for place in places]
    gain, half = own["over_published_pct"], own["over_published_ci95"]
    own["verdict"] = (gain > half).map({True: "win", False: ""}) + (gain < -half).map(
        {True: "loss", False: ""}
    )
    return own


def main() -> None:
    """Print the table, and how often which side wins."""
    parser = argparse.ArgumentParser("python -m benchmarks.forecast")
    parser.add_argument("--league", type=Path, default=Path("docs/league/league.csv"))
    own = rows_of(pd.read_csv(parser.parse_args().league))
    print(HEAD, "|---|---|---|---|---|---|---|---|", sep="\n")
    for row in own.itertuples():
        cells = (row.profile, row.case, row.concurrency, row.best_published)
        rates = (row.rival_tok_s_gpu, row.tok_s_gpu)
        print(
            ROW.format(*cells, *rates, row.over_published_pct, row.over_published_ci95, row.verdict)
        )
    print()
    plain = own["case"].isin(DOMAINS)
    for name, part in (("domains", own[plain]), ("hard cases", own[~plain])):
        wins, losses = ((part["verdict"] == kind).sum() for kind in ("win", "loss"))
        print(f"{name}: {wins} wins, {losses} losses, {len(part) - wins - losses} ties")


if __name__ == "__main__":
    main()
