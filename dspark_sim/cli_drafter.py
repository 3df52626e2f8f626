"""Commands about real drafters and their target (torch)."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError, expand_range

drafter_app = typer.Typer(no_args_is_help=True, help="Real drafters against a real target (torch).")

Drafters = Annotated[list[str], typer.Argument(help="Names, as dspark-markov eagle3.")]
Target = Annotated[str, typer.Option(help="Target model: tiny, smollm2-135m or your own.")]
Corpora = Annotated[Path | None, typer.Option(help="Folder of text; default: from packages.")]
Weights = Annotated[Path | None, typer.Option(help="Folder of weights; default: the shipped.")]
Temperature = Annotated[float, typer.Option(help="At which tokens are drawn.")]


def _room(module: str) -> Any:
    """Import a module of the torch room, or say how to get what it needs."""
    try:
        return importlib.import_module(f"dspark_sim.model.{module}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: real models need pip install 'dspark-sim[model]'"
        ) from None


def _existing(folder: Path | None) -> Path | None:
    if folder is not None and not folder.is_dir():
        raise UserError(f"--corpora {folder}: no such folder")
    return folder


@drafter_app.command("train")
def drafter_train(
    drafters: Drafters,
    weights: Annotated[Path, typer.Option(help="Folder that the weights go to.")],
    target: Annotated[str, typer.Option(help="nano, tiny or smollm2-135m.")] = "tiny",
    corpora: Corpora = None,
    work: Annotated[Path | None, typer.Option(help="Folder of checkpoints and caches.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Budget per drafter; default: the recipe's.", **opt.WHOLE)
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train the target too, though one is shipped.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Train drafters of a target on its own answers; an interrupted training goes on.

    dspark-sim drafter train dspark-markov --target nano --weights my-weights
    """
    from dspark_sim.study import stage_bar

    pipeline = _room("pipeline")
    recipe = pipeline.with_budget(pipeline.recipe(target), steps, device)
    pipeline.check_drafters(drafters)
    corpora = _existing(corpora)
    with stage_bar() as progress:
        shop = pipeline.Workshop(recipe, work or weights / "work", weights, corpora, progress)
        if not from_scratch:
            shop.take_shipped()
        shop.run(tuple(drafters))
    show.note(f"weights: {shop.folder}   checkpoints and caches, not needed any more: {shop.work}")


@drafter_app.command("evaluate")
def drafter_evaluate(
    drafters: Drafters,
    target: Target = "tiny",
    temperature: Temperature = 1.0,
    policy: Annotated[str | None, typer.Option(help="fixed:K or threshold:TAU.")] = None,
    prompts: Annotated[int, typer.Option(help="Held-out, per domain.", **opt.WHOLE)] = 40,
    tokens: Annotated[int, typer.Option(help="Per answer.", **opt.WHOLE)] = 100,
    corpora: Corpora = None,
    weights: Weights = None,
    seed: opt.Seed = None,
    as_json: opt.Json = False,
) -> None:
    """Speculate for real on held-out prompts: acceptance length and rate per position, by domain.

    dspark-sim drafter evaluate dspark-markov dflash eagle3 --temperature 0
    """
    table = _room("evaluate").evaluate_drafters(
        drafters, target, policy, prompts=prompts, tokens=tokens, temperature=temperature,
        corpora=corpora, weights=weights, seed=seed or 0,
    )  # fmt: skip
    print(json.dumps(show.records(table), indent=2) if as_json else show.brief(table))


@drafter_app.command("latency")
def drafter_latency(
    drafters: Drafters,
    target: Target = "tiny",
    draft_len: Annotated[str, typer.Option(help="Draft lengths, as 4..16:4.")] = "4..16:4",
    requests: Annotated[int, typer.Option(help="Drafting together.", **opt.WHOLE)] = 16,
    context: Annotated[int, typer.Option(help="Tokens before the block.", **opt.WHOLE)] = 256,
    weights: Weights = None,
    out: Annotated[Path | None, typer.Option("--out", help="Table (CSV) and picture.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Time a batch's drafts by length, beside the target pass that verifies them.

    dspark-sim drafter latency dspark-markov dflash eagle3 --out latency.png
    """
    lengths = [int(k) for k in expand_range(draft_len, "--draft-len")]
    table = _room("latency").latency_table(drafters, target, lengths, requests, context, weights)
    if out is not None:
        from dspark_sim.study import save_draft_latency

        table.to_csv(out.with_suffix(".csv"), index=False)
        save_draft_latency(table, out)
    print(json.dumps(show.records(table), indent=2) if as_json else show.brief(table))


@drafter_app.command("curves")
def drafter_curves(
    curves: Annotated[list[Path], typer.Argument(help="NAME-curve.csv of trainings.")],
    out: Annotated[Path, typer.Option("--out", help="Picture to draw (PNG, SVG).")],
) -> None:
    """Draw learning curves: held-out acceptance rate against training steps.

    dspark-sim drafter curves my-weights/tiny/*-curve.csv --out learning.png
    """
    from dspark_sim.study import save_learning_curves

    show.note(f"picture: {save_learning_curves(curves, out)[0]}")


@drafter_app.command("record")
def drafter_record(
    drafters: Drafters,
    out: Annotated[Path, typer.Option("--out", help="Recording (.parquet), or a folder for them.")],
    target: Target = "tiny",
    temperature: Temperature = 1.0,
    responses: Annotated[int, typer.Option(help="Per domain.", **opt.WHOLE)] = 100,
    positions: Annotated[int, typer.Option(help="Per response.", **opt.WHOLE)] = 64,
    corpora: Corpora = None,
    weights: Weights = None,
    seed: opt.Seed = None,
) -> None:
    """Record outcomes and confidences at every output position of the target's answers.

    dspark-sim drafter record dspark-markov --out tiny-dspark-t1.parquet
    """
    from dspark_sim.study import stage_bar

    paths = recording_paths(drafters, out, target, temperature)
    recordings = _room("recordings")
    plan = recordings.RecordingPlan(
        temperature, responses, positions, corpora=corpora, seed=seed or 0
    )
    with stage_bar() as progress:
        rows = recordings.make_recordings(paths, target, plan, weights=weights, progress=progress)
    for name, path in paths.items():
        show.note(f"wrote {rows[name]:,} positions to {path}")


def recording_paths(
    drafters: list[str], out: Path, target: str, temperature: float
) -> dict[str, Path]:
    """Return each drafter's file: `out` itself, or target-drafter-tT.parquet in that folder."""
    if out.suffix == ".parquet":
        if len(drafters) > 1:
            raise UserError(f"--out {out} is one file, but {len(drafters)} drafters are recorded")
        return {drafters[0]: out}
    out.mkdir(parents=True, exist_ok=True)
    return {name: out / f"{target}-{name}-t{temperature:g}.parquet" for name in drafters}
