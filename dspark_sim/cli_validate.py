"""The command that predicts published measurements and prints the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show


def validate(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="CASE…", help="V1, V2 …; default: all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer requests and points: seconds per case.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of SpecDecode-Bench's JSONL files (V4).")
    ] = None,
    trial: Annotated[
        Path | None, typer.Option("--trial", help="Folder of `dspark-sim trial` (V5).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for a picture per case and validation.json")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Predict published measurements; print what was fitted and how far off each prediction is.

    dspark-sim validate V1 V4 --out accuracy
    """
    from dspark_sim.core import whole_file
    from dspark_sim.study.validate import Settings, format_validation, save_validation
    from dspark_sim.study.validate import validate as run
    from dspark_sim.study.validate.text import accuracy_table

    show.note_compilation()
    outcomes = []
    for found in run(cases or (), Settings(quick, data, trial)):
        outcomes.append(found)
        if not as_json:
            print(format_validation(found), flush=True)
        if out is not None and found.points:
            save_validation(found, out / f"{found.case}.png")
    text = json.dumps({"cases": [found.summary() for found in outcomes]}, indent=2)
    if out is not None:
        with whole_file(out / "validation.json") as aside:
            aside.write_text(text + "\n", encoding="utf-8")
    print(text if as_json else show.brief(accuracy_table(outcomes)))
    if any(found.within_bounds is False for found in outcomes):
        raise typer.Exit(1)
