"""The command that turns a trace and an SLO into a fleet."""

from __future__ import annotations

import json
from math import isnan, nan
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError

if TYPE_CHECKING:
    from dspark_sim.study import DrafterMemory, Plan

DEFAULT_POLICIES = ("none", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "dspark-async", "vllm")
MEMORY = ("weights_gib", "kv_bytes", "target_kv_bytes")


def plan(
    trace: opt.Trace = None,
    profile: opt.Profile = None,
    acceptance: opt.Acceptance = None,
    policy: opt.Policies = None,
    request_rate: opt.Rate = None,
    rate_scale: opt.Scale = None,
    requests: opt.Requests = None,
    num_speculative_tokens: opt.Gamma = None,
    prefill: opt.Prefill = None,
    router: opt.Router = None,
    goodput: opt.Goodput = None,
    percentile: Annotated[
        int, typer.Option(help="Of requests that keep each limit: 50, 90, 95, 99.", **opt.WHOLE)
    ] = 95,
    price: Annotated[
        float | None, typer.Option("--price", help="Of a GPU-hour, in any currency.")
    ] = None,
    peak_window: Annotated[
        float, typer.Option("--peak-window", help="Seconds over which the peak is taken.")
    ] = 60.0,
    drafter_memory: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter-memory",
            help="weights_gib=, kv_bytes=, target_kv_bytes= (per token): lessen kv_tokens where "
            "a policy drafts.",
        ),
    ] = None,
    run_requests: Annotated[
        int, typer.Option("--run-requests", help="Requests per run of one replica.", **opt.WHOLE)
    ] = 1000,
    seeds: Annotated[int, typer.Option(help="Most seeds per rate.", **opt.WHOLE)] = 8,
    tolerance: Annotated[float, typer.Option(help="Of the largest rate, in %.")] = 2.0,
    extend: opt.Extend = False,
    seed: opt.Seed = None,
    jobs: opt.Jobs = -1,
    config: opt.Config = None,
    settings: opt.Set = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Size a fleet for an SLO: which policy, how many replicas and GPUs, at what cost.

    dspark-sim plan --trace chat-1k --rate-scale 8 --profile dsv4-flash-b300-tp4
    --goodput 'ttft:1000 tpot:20' --price 4
    """
    from dspark_sim.policies import expand_policy
    from dspark_sim.study import Planner, Slo, save_plan

    chosen = opt.options(locals())
    if request_rate is not None:
        opt.one(chosen, "request_rate", opt.numbers(request_rate, "request_rate"))
    scenario = opt.scenario_from(chosen, config, settings)
    if price is not None and not price > 0:
        raise UserError(f"--price must be positive, got {price:g}")
    limits = {str(metric): limit for metric, limit in scenario.goodput.items()}
    planner = Planner(
        scenario,
        Slo(limits, percentile),
        price_per_gpu_hour=nan if price is None else price,
        peak_window_s=peak_window,
        requests=run_requests,
        seeds=(3, max(seeds, 3)),
        tolerance=tolerance / 100,
        drafter_memory=_memory(drafter_memory),
        jobs=jobs,
    )
    show.note_compilation()
    specs = policy or list(DEFAULT_POLICIES)
    answer = planner.plan([name for spec in specs for name in expand_policy(spec)])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        answer.table.to_csv(out / "plan.csv", index=False)
        answer.points.to_csv(out / "points.csv", index=False)
        save_plan(answer, out / "plan.png")
    if as_json:
        print(json.dumps(_as_json(answer), indent=2))
        return
    _print(answer)
    if out is not None:
        print(f"table: {out / 'plan.csv'}   picture: {out / 'plan.png'}")


def _memory(texts: list[str] | None) -> DrafterMemory | None:
    from dspark_sim.study import DrafterMemory

    if texts is None:
        return None
    words = [word for text in texts for word in text.split(",")]
    given = opt.named_numbers(words, "--drafter-memory")
    if set(given) != set(MEMORY):
        raise UserError(f"--drafter-memory needs {', '.join(MEMORY)}, got {', '.join(given)}")
    return DrafterMemory(**given)


def _as_json(answer: Plan) -> dict[str, Any]:
    return {
        "recommended": answer.recommended,
        "slo": dict(answer.slo.limits),
        "percentile": answer.slo.percentile,
        "peak_rate": answer.peak_rate,
        "mean_rate": answer.mean_rate,
        "policies": show.records(answer.table),
        "points": show.records(answer.points),
    }


def _print(answer: Plan) -> None:
    """Print the table, what binds, and the advice in one sentence."""
    shown = {
        "policy": "policy", "max_rate": "req/s", "tok_s_gpu": "tok/s/GPU",
        "tok_s_user": "tok/s/user", "limit": "limit", "replicas": "replicas", "gpus": "GPUs",
        "headroom_pct": "headroom %", "cost_per_mtok_peak": "cost/Mtok peak",
        "cost_per_mtok": "cost/Mtok", "goodput": "goodput", "goodput_error_pct": "error %",
        "confirmed": "confirmed",
    }  # fmt: skip
    table = answer.table
    if table["cost_per_mtok"].isna().all():
        shown = {key: name for key, name in shown.items() if not key.startswith("cost")}
    print(f"peak {answer.peak_rate:.4g} requests/s, mean {answer.mean_rate:.4g}")
    print(show.brief(table[list(shown)].rename(columns=shown)))
    for _, row in table.iterrows():
        what = "" if row["feasible"] else "infeasible: "
        print(f"{row['policy']}: {what}{row['limit']} binds: {row['because']}")
        if row["feasible"] and not row["confirmed"]:
            print(
                f"{row['policy']}: no fleet of up to {row['replicas']:.0f} replicas keeps the SLO"
            )
    if answer.recommended is None:
        print("no lossless policy keeps the SLO")
        return
    row = table[table["policy"] == answer.recommended].iloc[0]
    cost = row["cost_per_mtok"]
    price = "" if isnan(cost) else f", {cost:.4g} per million output tokens"
    print(
        f"recommended: {answer.recommended} on {row['replicas']:.0f} replicas "
        f"({row['gpus']:.0f} GPUs), {row['headroom_pct']:.0f} % above the peak{price}"
    )
