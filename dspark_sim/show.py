"""What commands print: tables and notes; results go to stdout, notes to stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from dspark_sim.model.measure import Measured
    from dspark_sim.study import Comparison


def report_sweep(table: Any, out: Path | None, as_json: bool) -> None:
    """Print the table of a sweep, or its rows as JSON; write its frontier and pictures."""
    from dspark_sim.study import (
        format_table,
        frontier,
        save_latency,
        save_load,
        save_pareto,
        save_waste,
    )

    if out is not None:
        frontier(table).to_csv(out / "pareto.csv", index=False)
        save_pareto(table, out / "pareto.png")
        if table["concurrency"].notna().all() or table["request_rate"].notna().all():
            save_load(table, out / "load.png")
            save_latency(table, out / "latency.png")
            save_waste(table, out / "waste.png")
    if as_json:
        print(json.dumps(records(table), indent=2))
        return
    print(format_table(table))
    if (table["concurrency"].notna() & (table["window"] == "whole")).any():
        note("some closed loops have no steady window (requests < 2 x concurrency): measured whole")
    if out is not None:
        print(f"table: {out / 'sweep.csv'}   picture: {out / 'pareto.png'}")


def report_drafters(comparison: Comparison, out: Path | None, as_json: bool) -> None:
    """Print what recordings say about drafters; write their tables and pictures."""
    from dspark_sim.study import format_drafters, save_drafters

    for name in comparison.without_confidence:
        note(f"recording '{name}' has no confidences, hence no threshold sweep")
    if out is not None:
        comparison.save(out)
        save_drafters(comparison, out)
    if as_json:
        tables = {name: records(table) for name, table in vars(comparison).items()}
        print(json.dumps(tables, indent=2))
        return
    print(format_drafters(comparison))
    if out is not None:
        print(f"tables: {out / 'acceptance_length.csv'}, …   picture: {out / 'conditional.png'}, …")


def report_measured(measured: Measured, out: Path, as_json: bool) -> None:
    """Print what a measured profile says of steps, and how far it can be trusted."""
    from dspark_sim.throughput import summarize_profile

    profile = measured.profile
    table = summarize_profile(profile)
    if as_json:
        header = {key: value for key, value in profile.header().items() if key != "provenance"}
        about = {**header, "provenance": profile.provenance, "steps": records(table)}
        print(json.dumps({**about, "checks": records(measured.checks)}, indent=2))
        return
    print(brief(table))
    for key in ("machine", "attention", "roofline", "additive", "checks", "noise", "drift"):
        print(f"{key}: {profile.provenance[key]}")
    note(f"left out: {profile.provenance['left_out']}")
    note(f"wrote profile '{profile.name}' to {out}")


def print_summary(identity: dict[str, Any], summary: dict[str, Any]) -> None:
    """Print what was run and every metric, one per line."""
    rows = {**{key: value for key, value in identity.items() if value is not None}, **summary}
    width = max(len(key) for key in rows)
    for key, value in rows.items():
        print(f"{key:<{width}}  {short(value)}")


def records(table: Any) -> list[dict[str, Any]]:
    """Return a table as plain rows for JSON."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=15))
    return rows


def brief(table: Any) -> str:
    """Return a table as aligned text with four digits."""
    return str(table.to_string(index=False, float_format=lambda value: f"{value:,.4g}", na_rep="-"))


def short(value: Any) -> str:
    """Return a value with six digits."""
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def note(text: str) -> None:
    """Tell the user something on stderr."""
    print(text, file=sys.stderr)


def note_compilation() -> None:
    """Say what a first run is busy with."""
    from dspark_sim.jit import is_compiled

    if sys.stderr.isatty() and not is_compiled():
        note("compiling the kernels, once on this machine (about 15 s) …")
