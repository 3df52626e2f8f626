"""Where the best threshold lies, by load and domain, and whether `tune` finds the grid's.

python -m benchmarks.tuning [--profile NAME] [--policy SPEC]

Each row is a domain and a load: what the race of `dspark-sim tune` answers, what the whole grid
of values and seeds answers, and how many simulations both took. Decoding alone.
"""

from __future__ import annotations

import argparse

from benchmarks.league import DENSE, DOMAINS, REQUESTS, traffic
from dspark_sim import Scenario
from dspark_sim.study import Objective, tune

LOADS = (16, 64, 256)
ROW = "| {} | {} | {:g} | {:g} to {:g} | {:g} | {:.2f} | {} | {} |"


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser("python -m benchmarks.tuning")
    parser.add_argument("--profile", default=DENSE)
    parser.add_argument("--policy", default="threshold:0..0.9:0.05,on=survival")
    options = parser.parse_args()
    print(
        "| domain | c | best | not surely worse | grid's best | loss of ours, % | runs | grid's |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for domain in DOMAINS:
        for load in LOADS:
            scenario = Scenario(
                profile=options.profile,
                requests=REQUESTS[load],
                prefill={"mode": "none"},
                **traffic(options.profile, domain),
            )
            arguments = (scenario, options.policy, Objective("throughput"), [load])
            ours, grid = (tune(*arguments, exhaustive=whole) for whole in (False, True))
            found, exact = ours.table.iloc[0], grid.table.iloc[0]
            lost = grid.values.set_index("value")["loss_pct"][found["best"]]
            cells = (found["best"], found["low"], found["high"], exact["best"], lost)
            runs = found["simulations"], exact["simulations"]
            print(ROW.format(domain, load, *cells, *runs), flush=True)


if __name__ == "__main__":
    main()
