"""Every policy against the best fixed length and the best published rule, on the same luck.

    python -m benchmarks.league [--quick] [--profile NAME ...] [--case NAME ...] [--jobs 1]

Runs every policy at every load of every profile and case with the same seeds, and writes
league.csv and one picture per profile to docs/league (--to). The runs are kept in build/league
(--runs), one folder per profile, case and load, which `dspark-sim explain` reads; a run that is
there is not run again, so a killed league goes on. Prompts are free: decoding alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from dspark_sim import Scenario
from dspark_sim.core import whole_file
from dspark_sim.study import league, save_league, sweep

POLICIES = (
    "none", *(f"fixed:{k}" for k in range(1, 8)),
    "k-table:1-4:7,5-64:5,65-256:3", "k-table:1-4:7,5-64:5,65-256:3,adaptive=yes",
    "threshold:0.5", "threshold:0.8", "threshold:0.3,on=survival", "threshold:0.5,on=survival",
    "threshold:0.6,on=rejection", "ratio:0.5", "ratio:0.75", "tetris:3", "tetris:5", "knee",
    "dspark", "dspark-async", "vllm", "sglang", "sglang:fill=tier,guard=0.01",
    "trt:lag=1", "trt:lag=1,budgets=tiers", "atom", "dcut:lag=1",
    "smartspec", "dsd-online", "sgl-ema", "gate-off:1", "sticky-off",
    "forecast",
    "threshold:auto", "trt", "dcut", "oracle",
)  # fmt: skip
RIVALS = (
    "none", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "threshold:0.5,on=survival",
    "threshold:0.6,on=rejection", "tetris:3", "knee", "dspark", "dspark-async", "vllm", "sglang",
    "trt:lag=1", "dcut:lag=1", "smartspec", "dsd-online", "forecast",
)  # fmt: skip
"""Who takes part in the hard cases."""
REQUESTS = {1: 50, 4: 100, 16: 200, 32: 300, 48: 400, 64: 400, 128: 600, 256: 800}
SEEDS = 5

MOE, DENSE, CPU = "dsv4-flash-b300-tp4", "llama3.1-8b-h100", "smollm2-135m-cpu"
LOADS = {MOE: (1, 4, 16, 64, 128, 256), DENSE: (1, 4, 16, 64, 128, 256), CPU: (1, 4, 16, 32)}
DOMAINS = ("chat", "code", "math")
HARD_LOADS = (16, 64, 256)
SMALL_MOE, SMALL_DENSE = "qwen3.5-35b-a3b-h20", "qwen3-8b-h20"


def traffic(profile: str, domain: str) -> dict[str, Any]:
    """Return the scenario's keys for a domain: the paper's law, or on the CPU its recording."""
    if profile == CPU:
        return {
            "trace": f"synth:chat,category={domain}",
            "acceptance": "smollm2-135m-dspark-markov-t1",
            "belief": {"temperatures": "recorded"},
        }
    return {"acceptance": f"{domain}-dspark"}


def hard_cases(deep: Path) -> dict[str, dict[str, Any]]:
    """Return the scenario's keys where published rules are known to lose, by the case's name."""
    return {
        "sure of itself": {"acceptance": "chat-dspark", "belief": {"confidence_bias": 1.5}},
        "deep positions": {"acceptance": "chat-dspark", "belief": {"temperatures": str(deep)}},
        "weak drafter": {"acceptance": "geometric:1.4"},
        "short outputs": {"acceptance": "chat-dspark", "trace": "synth:chat,out=20"},
    }


def wrong_tables() -> dict[str, dict[str, Any]]:
    """Return the scenario's keys for beliefs about the cost of a small mixture of experts."""
    law = {"acceptance": "chat-dspark"}
    return {
        "true table": law,
        "flat table": law | {"belief": {"table": "flat"}},
        "dense table": law | {"belief": {"profile": SMALL_DENSE}},
    }


def cells(runs: Path) -> list[tuple[str, str, int, dict[str, Any], tuple[str, ...]]]:
    """Return profile, case, load, scenario's keys and policies of every cell."""
    deep = runs / "deep.json"
    deep.parent.mkdir(parents=True, exist_ok=True)
    if not deep.exists():
        deep.write_text(json.dumps({"temperatures": [1.0, 1.0, 1.0, 0.6, 0.5, 0.4, 0.3]}) + "\n")
    found = [
        (profile, domain, load, traffic(profile, domain), POLICIES)
        for profile, loads in LOADS.items()
        for domain in DOMAINS
        for load in loads
    ]
    found += [
        (profile, case, load, keys, RIVALS)
        for profile in (MOE, DENSE)
        for case, keys in hard_cases(deep).items()
        for load in HARD_LOADS
    ]
    found += [
        (SMALL_MOE, case, load, keys, RIVALS)
        for case, keys in wrong_tables().items()
        for load in (16, 48)
    ]
    return found


def run_cell(
    cell: tuple[str, str, int, dict[str, Any], tuple[str, ...]], options: argparse.Namespace
) -> pd.DataFrame:
    """Run one cell, as far as it has not been run, and return its league."""
    profile, case, load, keys, policies = cell
    scenario = Scenario(
        profile=profile,
        requests=REQUESTS[load],
        prefill={"mode": "none"},
        record="summary",
        **keys,
    )
    place = options.runs / profile / case.replace(" ", "-") / f"c{load}"
    runs = sweep(
        scenario, policies, [load], seeds=range(options.seeds), jobs=options.jobs, out=place
    )
    table = league(runs)
    table.insert(0, "case", case)
    table.insert(0, "profile", profile)
    return table


def write(table: pd.DataFrame, to: Path) -> None:
    """Write league.csv, and one picture per profile of its three domains."""
    to.mkdir(parents=True, exist_ok=True)
    rounded = table.copy()
    for column in table.select_dtypes("float"):
        rounded[column] = [float(f"{value:.5g}") for value in table[column]]
        if "_over_" in f"_{column}":
            rounded[column] = table[column].round(2) + 0.0
    with whole_file(to / "league.csv") as aside:
        rounded.to_csv(aside, index=False)
    for profile, rows in table.groupby("profile", sort=False):
        tables = {case: rows[rows["case"] == case] for case in DOMAINS if case in set(rows["case"])}
        if tables:
            order = [policy for policy in POLICIES if policy in set(rows["policy"])]
            about = f"{profile}, decoding alone, paired over {rows['n_seeds'].max()} seeds"
            _, vector = save_league(tables, order, to / f"{profile}.png", about)
            vector.unlink()


def main() -> None:
    """Run what is missing, cell by cell, and write the table and the pictures."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.league", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--profile", action="append", help="repeatable; default: all")
    parser.add_argument("--case", action="append", help="repeatable; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="2 seeds, chat alone: two minutes")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("build/league"))
    parser.add_argument("--to", type=Path, default=Path("docs/league"))
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.case, options.to = 2, ["chat"], options.runs
    chosen = [
        cell
        for cell in cells(options.runs)
        if (not options.profile or cell[0] in options.profile)
        and (not options.case or cell[1] in options.case)
    ]
    tables = []
    for number, cell in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)}: {cell[0]}, {cell[1]}, {cell[2]}", file=sys.stderr)
        tables.append(run_cell(cell, options))
    write(pd.concat(tables, ignore_index=True), options.to)


if __name__ == "__main__":
    main()
