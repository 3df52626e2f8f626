"""The timing core's own command line, for machines where nothing but torch is installed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dspark_sim.core import whole_file
from dspark_sim.model.timing.run import measure
from dspark_sim.model.timing.settings import Settings
from dspark_sim.model.timing.sizes import MODELS


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(prog="timing", description=__doc__)
    made.add_argument("--model", required=True, help=", ".join(MODELS))
    made.add_argument("--device", default="cpu", help="cpu or cuda")
    made.add_argument("--out", required=True, help="JSON file of the timings")
    made.add_argument("--dtype", default="", help="float32, bfloat16 or float16")
    made.add_argument("--quick", action="store_true", help="few points")
    made.add_argument("--max-seconds", type=float, default=0.0, help="of the whole run")
    made.add_argument(
        "--contexts", default="", help="KV tokens of a request, as 2048,512,8192; main one first"
    )
    made.add_argument(
        "--max-requests", type=int, default=0, help="most requests that decode at once"
    )
    made.add_argument(
        "--num-speculative-tokens", dest="draft_len", type=int, default=7, help="longest draft"
    )
    made.add_argument("--capture-limit", type=int, default=1024, help="largest CUDA graph, tokens")
    made.add_argument("--layers", type=int, default=0, help="run so many and scale up")
    made.add_argument("--seed", type=int, default=0, help="of lengths, tokens and weights")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the timings, say what was found; return the exit code."""
    given = vars(parser().parse_args(arguments))
    out = given.pop("out")
    try:
        given["contexts"] = tuple(int(text) for text in filter(None, given["contexts"].split(",")))
        timings = measure(Settings(**given), show_progress)
        with whole_file(out) as aside:
            aside.write_text(json.dumps(timings, indent=1), encoding="utf-8")
    except ValueError as error:  # a UserError is one
        sys.stderr.write(f"timing: {error}\n")
        return 2
    sys.stdout.write(report(timings))
    return 0


def show_progress(row: dict[str, Any]) -> None:
    """Show how far a run is, on a terminal only."""
    if sys.stderr.isatty():
        end = "\n" if row["step"] == row["steps"] else ""
        sys.stderr.write(f"\r{row['stage']} {row['step']}/{row['steps']}   {end}")


def report(timings: dict[str, Any]) -> str:
    """Return the machine, then one line per point: time, spread, distance to the roofline."""
    machine, reference = timings["machine"], timings["reference"]
    lines = [
        f"{timings['model']['name']} {timings['settings']['dtype']} on {machine['name']}, "
        f"torch {machine['torch']}: copy {machine['copy_gb_s']:.0f} GB/s, "
        f"matmul {machine['matmul_tflop_s']:.3g} TFLOP/s",
        *(f"kernel {name}: {said}" for name, said in timings["kernels"].items()),
        f"{len(timings['points'])} points in {timings['seconds']} s, {len(timings['left_out'])} "
        f"left out for time; reference drift {reference.get('drift', 0.0):+.1%}",
        f"{'kind':<21}{'R':>5}{'M':>6}{'context':>8}{'k':>3}{'ms':>10}{'p10':>10}{'p90':>10}"
        f"{'n':>4}{'x roof':>8}  kernel",
    ]
    for row in timings["points"]:
        roof = row.get("roofline_ms")
        over = f"{row['ms'] / roof:>8.2f}" if roof else f"{'-':>8}"
        lines.append(
            f"{row['kind']:<21}{row['requests']:>5}{row['tokens']:>6}{row['context']:>8}"
            f"{row['draft_len']:>3}{row['ms']:>10.4g}{row['p10_ms']:>10.4g}{row['p90_ms']:>10.4g}"
            f"{row['n']:>4}{over}  {row['attention']}{', graph' if row['captured'] else ''}"
        )
    return "\n".join(lines) + "\n"
