"""Commands about what a step costs: engine throughput profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show

profile_app = typer.Typer(no_args_is_help=True, help="Engine throughput profiles.")


@profile_app.command("show")
def profile_show(
    name: Annotated[str, typer.Argument(help="Shipped name or folder.")],
    requests: Annotated[
        int | None,
        typer.Option("--requests", help="Add the terms of this many requests.", **opt.WHOLE),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Picture to draw (PNG, SVG).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Print a profile's step times and SPS(B): staircase, measured points and cliff."""
    from dspark_sim.throughput import load_profile, plot_profile, summarize_profile

    profile = load_profile(name)
    table = summarize_profile(profile, requests)
    if out is not None:
        plot_profile(profile, out, requests)
    if as_json:
        header = {key: value for key, value in profile.header().items() if key != "provenance"}
        rows = show.records(table)
        print(json.dumps({**header, "provenance": profile.provenance, "steps": rows}, indent=2))
        return
    print(
        f"{profile.name}: {profile.model} on {profile.num_gpus} x {profile.gpu}, {profile.engine}; "
        f"up to {profile.max_num_seqs} requests and {profile.max_num_batched_tokens} tokens a step"
    )
    print(show.brief(table))
    for key, value in profile.provenance.items():
        print(f"{key}: {value}")
