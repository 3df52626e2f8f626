"""The command that runs the real engine under policies and measures its costs (torch)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError


def trial(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must not exist.")],
    target: Annotated[str, typer.Option(help="tiny, smollm2-135m or your own.")] = "tiny",
    drafter: Annotated[str, typer.Option(help="Name, as dspark-markov.")] = "dspark-markov",
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="NAME:ARGS, repeatable; default: six.")
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Closed loops, as 1,4,8.")] = "1,4,8,16",
    temperature: Annotated[float, typer.Option(help="0: greedy, the same tokens always.")] = 0.0,
    least: Annotated[int, typer.Option(help="Requests of a run, at least.", **opt.WHOLE)] = 24,
    per_stream: Annotated[
        int, typer.Option(help="Requests per stream of a closed loop.", **opt.WHOLE)
    ] = 6,
    repeats: Annotated[int, typer.Option(help="Runs of each.", **opt.WHOLE)] = 3,
    weights: Annotated[Path | None, typer.Option(help="Folder of weights.")] = None,
    corpora: Annotated[Path | None, typer.Option(help="Folder of text for prompts.")] = None,
    threads: Annotated[int, typer.Option(help="Of torch.", **opt.WHOLE)] = 1,
    seed: opt.Seed = None,
) -> None:
    """Run the real engine under policies, with its costs and acceptance, for validate to predict.

    dspark-sim trial --target tiny --out mine; dspark-sim validate V5 --trial mine
    """
    try:
        from dspark_sim.model.trial import POLICIES, TrialPlan, run_trial
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: a trial needs pip install 'dspark-sim[model]'"
        ) from None
    from dspark_sim.study import stage_bar

    plan = TrialPlan(
        target=target, drafter=drafter, policies=tuple(policy or POLICIES),
        concurrency=tuple(opt.whole_numbers(concurrency, "--concurrency")), repeats=repeats,
        requests=(least, per_stream),
        temperature=temperature, seed=seed or 0, corpora=corpora,
        threads=threads,
    )  # fmt: skip
    with stage_bar() as progress:
        runs = run_trial(out, plan, weights=weights, progress=progress)
    print(show.brief(runs.groupby(["policy", "concurrency"], sort=False).mean().reset_index()))
    print(f"trial: {out}")
