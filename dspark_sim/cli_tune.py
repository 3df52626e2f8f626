"""The command that tunes a policy's parameter."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError


def tune(
    policy: Annotated[
        str, typer.Option("--policy", help="With one range: threshold:0..0.9:0.1, vllm:lag=1..3:1.")
    ],
    trace: opt.Trace = None,
    profile: opt.Profile = None,
    acceptance: opt.Acceptance = None,
    concurrency: opt.Concurrency = None,
    request_rate: opt.Rate = None,
    requests: opt.Requests = None,
    num_speculative_tokens: opt.Gamma = None,
    prefill: opt.Prefill = None,
    goodput: opt.Goodput = None,
    objective: Annotated[
        str, typer.Option(help="throughput, goodput (per load); throughput-at:80, area (over all).")
    ] = "throughput",
    seeds: Annotated[int, typer.Option(help="Most seeds per value.", **opt.WHOLE)] = 8,
    tolerance: Annotated[float, typer.Option(help="A loss that does not matter, in %.")] = 0.5,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Run every value with every seed.")
    ] = False,
    extend: opt.Extend = False,
    seed: opt.Seed = None,
    jobs: opt.Jobs = -1,
    config: opt.Config = None,
    settings: opt.Set = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Find the best threshold, length, gain or lag at each load, with its interval.

    dspark-sim tune --policy threshold:0..0.9:0.05 --profile dsv4-flash-b300-tp4 --trace chat-1k
    --concurrency 4,64 --prefill none
    """
    from dspark_sim.study import parse_objective, save_tune
    from dspark_sim.study import tune as run

    chosen = opt.options({**locals(), "policy": None})
    scenario = opt.scenario_from(chosen, config, settings, without=("concurrency", "request_rate"))
    if not 0 <= tolerance < 100:
        raise UserError(f"--tolerance must lie in 0..100 %, got {tolerance:g}")
    show.note_compilation()
    tuned = run(
        scenario,
        policy,
        parse_objective(objective),
        opt.whole_numbers(concurrency, "concurrency"),
        opt.numbers(request_rate, "request_rate"),
        seeds=seeds,
        tolerance=tolerance / 100,
        exhaustive=exhaustive,
        jobs=jobs,
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        tuned.values.to_csv(out / "tune.csv", index=False)
        save_tune(tuned, out / "tune.png", f"{policy}, {scenario.profile}")
    if as_json:
        tables = {"best": show.records(tuned.table), "values": show.records(tuned.values)}
        print(json.dumps({**tables, "setting": tuned.setting}, indent=2))
        return
    print(show.brief(tuned.table))
    made, grid = tuned.table["simulations"].sum(), tuned.table["grid_simulations"].sum()
    print(f"{made} simulations, {made / grid:.0%} of the {grid} of the whole grid")
    print(f"setting: {json.dumps(tuned.setting)}")
    if out is not None:
        print(f"table: {out / 'tune.csv'}   picture: {out / 'tune.png'}")
