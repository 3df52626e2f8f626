"""Commands about what goes in: traces and acceptance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dspark_sim import options as opt
from dspark_sim import show

trace_app = typer.Typer(no_args_is_help=True, help="Read, draw and convert request traces.")
acceptance_app = typer.Typer(no_args_is_help=True, help="Acceptance laws and recordings.")


@trace_app.command("show")
def trace_show(
    trace: Annotated[str, typer.Argument(help="File, shipped name or synth:KIND.")],
    rate_scale: opt.Scale = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", help="Only the first so many, or as many drawn.", **opt.WHOLE),
    ] = None,
    seed: opt.Seed = None,
    out: Annotated[Path | None, typer.Option("--out", help="Picture to draw (PNG, SVG).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Print counts, rates, lengths and burstiness of a trace, and draw it."""
    from dspark_sim.trace import load_trace, plot_trace, summarize

    loaded = load_trace(trace, requests, seed or 0)
    loaded = loaded if rate_scale is None else loaded.scaled(rate_scale)
    summary = summarize(loaded)
    if out is not None:
        plot_trace(loaded, out)
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    for key, value in summary.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        text = "  ".join(f"{name} {show.short(item)}".strip() for name, item in inner)
        print(f"{key:<20} {text}")


@trace_app.command("synth")
def trace_synth(
    kind: Annotated[str, typer.Argument(help="chat, code, reasoning, fixed,in=512,out=256 …")],
    out: Annotated[Path, typer.Option("--out", help="Trace file to write (JSONL).")],
    requests: Annotated[
        int, typer.Option("--requests", help="How many requests.", **opt.WHOLE)
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", **opt.WHOLE)] = 0,
) -> None:
    """Draw a synthetic trace and write it.

    dspark-sim trace synth chat --requests 1000 --seed 1 --out chat.jsonl
    """
    from dspark_sim.trace import load_trace, write_trace

    write_trace(load_trace(f"synth:{kind.removeprefix('synth:')}", requests, seed), out)
    show.note(f"wrote {requests} requests to {out}")


@trace_app.command("convert")
def trace_convert(
    source: Annotated[Path, typer.Argument(help="Azure, Mooncake, Vidur, …, by content.")],
    out: Annotated[Path, typer.Option("--out", help="Trace file to write (JSONL).")],
    category: Annotated[str | None, typer.Option(help="Category of all requests.")] = None,
) -> None:
    """Read a trace in any known format and write it in our own."""
    from dspark_sim.trace import read_trace, write_trace

    trace = read_trace(source)
    write_trace(trace if category is None else trace.with_category(category), out)
    show.note(f"wrote {len(trace)} requests to {out}")


@acceptance_app.command("show")
def acceptance_show(
    name: Annotated[str, typer.Argument(help="Shipped law or recording, Parquet file, mix:….")],
    num_speculative_tokens: opt.Gamma = None,
    seed: opt.Seed = None,
    as_json: opt.Json = False,
) -> None:
    """Print acceptance per position and how far its confidence can be trusted.

    dspark-sim acceptance show chat-dspark:scale=1.8
    """
    from dspark_sim.acceptance import draw_blocks, load_acceptance
    from dspark_sim.acceptance.reliability import calibration_metrics

    source = load_acceptance(name, num_speculative_tokens or 7)
    rounds = draw_blocks(source, draft_len=num_speculative_tokens, seed=seed or 0).rounds()
    table = calibration_metrics(rounds.confidence, rounds.accepted)
    before = table["observed"].shift(fill_value=1.0)
    table.insert(2, "conditional", table["observed"] / before.where(before > 0))
    length = 1.0 + float(rounds.accepted.mean())
    if as_json:
        about = {"name": source.name, "origin": source.origin, "acceptance_length": length}
        about["temperatures"] = source.temperatures
        print(json.dumps({**about, "positions": show.records(table)}, indent=2))
        return
    print(f"{source.name}: {source.origin}")
    print(f"acceptance length {length:.3f} (bonus included), whole blocks verified")
    if source.temperatures is not None:
        shown = " ".join(f"{temperature:.4g}" for temperature in source.temperatures)
        print(f"temperatures {shown} (kept with the recording)")
    print(show.brief(table))


@acceptance_app.command("calibrate")
def acceptance_calibrate(
    name: Annotated[str, typer.Argument(help="Shipped law or recording, Parquet file, mix:….")],
    out: Annotated[Path, typer.Option("--out", help="Temperatures to write (SGLang's JSON).")],
    held_out: Annotated[float, typer.Option(help="Share of requests kept for measuring.")] = 0.5,
    num_speculative_tokens: opt.Gamma = None,
    seed: opt.Seed = None,
    as_json: opt.Json = False,
) -> None:
    """Fit one temperature per position, measure on other requests, draw the reliability diagram.

    dspark-sim acceptance calibrate chat-dspark:scale=1.8 --out sts.json
    """
    from dspark_sim.acceptance import (
        compare_calibration,
        draw_blocks,
        fit_held_out,
        load_acceptance,
        write_temperatures,
    )
    from dspark_sim.study import save_reliability

    source = load_acceptance(name, num_speculative_tokens or 7)
    blocks = draw_blocks(source, draft_len=num_speculative_tokens, seed=seed or 0)
    scaling, test = fit_held_out(blocks, source.name, held_out, seed or 0)
    table = compare_calibration(test, scaling)
    write_temperatures(scaling, out)
    pictures = save_reliability(test, scaling, out.with_suffix(".png"), title=source.name)
    if as_json:
        print(json.dumps(show.records(table), indent=2))
        return
    print(
        show.brief(table[[column for column in table if not str(column).startswith("predicted")]])
    )
    print(f"temperatures: {out}   picture: {pictures[0]}")


@acceptance_app.command("compare")
def acceptance_compare(
    names: Annotated[
        list[str],
        typer.Argument(help="Shipped recordings or laws, Parquet files.", metavar="NAME…"),
    ],
    num_speculative_tokens: opt.Gamma = None,
    seed: opt.Seed = None,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Replay recordings one request at a time: acceptance length, rates by position, thresholds.

    dspark-sim acceptance compare tiny-dspark-markov-t1 tiny-dflash-t1 tiny-eagle3-t1 --out out
    """
    from dspark_sim.study import compare_drafters

    comparison = compare_drafters(names, num_speculative_tokens, seed or 0)
    show.report_drafters(comparison, out, as_json)
