"""Commands about real drafters and their target (torch)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show
from dspark_sim.core import UserError

drafter_app = typer.Typer(no_args_is_help=True, help="Real drafters against a real target (torch).")


@drafter_app.command("record")
def drafter_record(
    drafter: Annotated[str, typer.Argument(help="Trained drafter, as dspark-markov.")],
    out: Annotated[Path, typer.Option("--out", help="Recording to write (Parquet).")],
    target: Annotated[str, typer.Option(help="Target model it was trained for.")] = "tiny",
    temperature: Annotated[float, typer.Option(help="Of the target's answers.")] = 1.0,
    responses: Annotated[int, typer.Option(help="Per domain.", **opt.WHOLE)] = 100,
    positions: Annotated[int, typer.Option(help="Per response.", **opt.WHOLE)] = 64,
    corpora: Annotated[Path | None, typer.Option(help="Folder of prompts.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder of weights.")] = None,
    seed: opt.Seed = None,
) -> None:
    """Record a drafter's outcomes and confidences at every output position of real answers.

    dspark-sim drafter record dspark-markov --out tiny-dspark-t1.parquet
    """
    try:
        from dspark_sim.model.recordings import make_recording
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: real models need pip install 'dspark-sim[model]'"
        ) from None
    rows = make_recording(
        out,
        target,
        drafter,
        temperature=temperature,
        responses=responses,
        positions=positions,
        corpora=corpora,
        weights=weights,
        seed=seed or 0,
    )
    show.note(f"wrote {rows:,} positions to {out}")
