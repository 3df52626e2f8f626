"""The command that says why one policy beats another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show


def explain(
    sources: Annotated[
        list[Path], typer.Argument(help="Folder of a sweep, its sweep.csv, or folders of results.")
    ],
    baseline: Annotated[
        str | None, typer.Option(help="Policy to compare with; default: the fastest at each load.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Picture (PNG, SVG); default: in the folder.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Split the time per token into draft, verify, padding, …: why a policy wins.

    dspark-sim explain out --baseline fixed:7
    """
    from dspark_sim.study import explain as run
    from dspark_sim.study import explain_runs, reasons, save_explain, wide

    table = run(explain_runs(sources), baseline)
    picture = save_explain(table, out or _place(sources[0]))[0]
    if as_json:
        print(json.dumps({"parts": show.records(table), "why": reasons(table)}, indent=2))
        return
    print(f"µs of engine time per output token\n{show.brief(wide(table))}\n")
    for sentence in reasons(table):
        print(sentence)
    print(f"picture: {picture}")


def _place(source: Path) -> Path:
    """Return where the picture goes: in a sweep's folder, beside a result's, which is closed."""
    if (source / "summary.json").is_file():
        return source.with_name(f"{source.name}-explain.png")
    return (source if source.is_dir() else source.parent) / "explain.png"
