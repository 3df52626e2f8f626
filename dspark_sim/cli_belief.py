"""The command that asks what a wrong belief costs a policy."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError


def belief(
    trace: opt.Trace = None,
    profile: opt.Profile = None,
    acceptance: opt.Acceptance = None,
    policy: opt.Policies = None,
    concurrency: opt.Concurrency = None,
    request_rate: opt.Rate = None,
    requests: opt.Requests = None,
    num_speculative_tokens: opt.Gamma = None,
    prefill: opt.Prefill = None,
    stale_context: Annotated[
        int,
        typer.Option("--stale-context", help="KV tokens/request of the stale table.", **opt.WHOLE),
    ] = 8192,
    stale_profile: Annotated[
        str | None, typer.Option("--stale-profile", help="Profile whose table is believed.")
    ] = None,
    raw_scale: Annotated[
        float, typer.Option("--raw-scale", help="Of uncalibrated logits; above 1: over-confident.")
    ] = 1.8,
    drift_from: Annotated[
        str | None,
        typer.Option("--drift-from", help="Law the confidences were calibrated on: chat-dspark."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from --seed on.", **opt.WHOLE)] = 3,
    extend: opt.Extend = False,
    seed: opt.Seed = None,
    jobs: opt.Jobs = -1,
    config: opt.Config = None,
    settings: opt.Set = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Degrade what policies believe, one belief at a time, and see what each costs.

    dspark-sim belief --profile llama3.1-8b-h100 --trace chat-1k --policy vllm --concurrency 16,64
    --prefill none
    """
    from dspark_sim.policies import expand_policy
    from dspark_sim.study import Doubts, belief_study, save_belief

    chosen = opt.options({**locals(), "policy": None})
    scenario = opt.scenario_from(chosen, config, settings, without=("concurrency", "request_rate"))
    if seeds < 1:
        raise UserError(f"--seeds must be 1 or more, got {seeds}")
    specs = policy or ["dspark-async", "vllm"]
    show.note_compilation()
    table = belief_study(
        scenario,
        [name for spec in specs for name in expand_policy(spec)],
        opt.whole_numbers(concurrency, "concurrency"),
        opt.numbers(request_rate, "request_rate"),
        range(scenario.seed, scenario.seed + seeds),
        doubts=Doubts(stale_context, stale_profile, raw_scale, drift_from),
        jobs=jobs,
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        table.to_csv(out / "belief.csv", index=False)
        save_belief(table, out / "belief.png")
    if as_json:
        print(json.dumps(show.records(table), indent=2))
        return
    shown = ["policy", "concurrency", "request_rate", "belief", "tok_s_gpu", "verify_budget",
             "loss_pct", "loss_pct_ci95"]  # fmt: skip
    print(show.brief(table[shown].dropna(axis=1, how="all")))
    for name, about in dict(zip(table["belief"], table["about"], strict=True)).items():
        print(f"{name}: {about}")
    if out is not None:
        print(f"table: {out / 'belief.csv'}   picture: {out / 'belief.png'}")
