"""Options that commands share, and the scenario they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_sim.config import Scenario, read_toml, with_settings
from dspark_sim.core import UserError, expand_range, parse_number, unknown_name


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a whole number") from None


LOADS = {"concurrency", "request_rate", "rate_scale"}
WHOLE: Any = {"parser": _whole, "metavar": "INT"}

Trace = Annotated[
    str | None,
    typer.Option("--trace", help="File, shipped name or synth:KIND; default synth:chat."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Shipped name or folder of an engine profile.")
]
Acceptance = Annotated[
    str | None,
    typer.Option("--acceptance", help="Law, recording or mix; default chat-dspark."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="NAME:ARGS; repeatable; ranges as in threshold:0.1..0.9:0.1."),
]
Concurrency = Annotated[
    str | None, typer.Option("--concurrency", help="Closed loop: requests in flight (1..256).")
]
Rate = Annotated[
    str | None, typer.Option("--request-rate", help="Open loop: Poisson arrivals per second.")
]
Scale = Annotated[
    float | None, typer.Option("--rate-scale", help="Speed up the trace's own times.")
]
Requests = Annotated[
    int | None,
    typer.Option("--requests", help="How many; default max(1000, 8 x concurrency).", **WHOLE),
]
Gamma = Annotated[
    int | None, typer.Option("--num-speculative-tokens", help="Draft length γ; default 7.", **WHOLE)
]
Prefill = Annotated[
    str | None, typer.Option("--prefill", help="chunked, separate or none; default chunked.")
]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", help="SLOs in ms as in 'ttft:500 tpot:30'; repeatable."),
]
Replicas = Annotated[
    int | None, typer.Option("--replicas", help="Open loop: engines behind a router.", **WHOLE)
]
Router = Annotated[
    str | None, typer.Option("--router", help="round-robin (default), least-loaded or random.")
]
Extend = Annotated[
    bool, typer.Option("--extend", help="Extend the profile beyond what was measured.")
]
Record = Annotated[
    str | None,
    typer.Option("--record", help="Tables to keep: steps (all), requests or summary (none)."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed of luck and arrivals; default 0.", **WHOLE)
]
Config = Annotated[
    Path | None, typer.Option("--config", help="Scenario file (TOML); options override it.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any scenario key, as in belief.table=flat.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Jobs = Annotated[
    int, typer.Option("--jobs", help="Processes, this one too; -1: all cores.", **WHOLE)
]
Backend = Annotated[
    str, typer.Option("--backend", help="loky: processes here (--jobs); dask: a cluster.")
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Dask's scheduler, as tcp://10.0.0.1:8786.")
]
Refine = Annotated[
    int,
    typer.Option("--refine", help="Add up to N concurrencies where the curves bend.", **WHOLE),
]


def options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario keys among a command's options that were given."""
    keys = set(Scenario.model_fields) - {"prefill", "goodput", "policy", "extend"}
    chosen = {key: given[key] for key in keys if given.get(key) is not None}
    if given.get("extend"):
        chosen["extend"] = True
    if given.get("prefill") is not None:
        chosen["prefill"] = {"mode": given["prefill"]}
    if given.get("goodput"):
        chosen["goodput"] = objectives(given["goodput"])
    return chosen


def objectives(texts: list[str]) -> dict[str, float]:
    """Read SLOs in vLLM's form, several in one text or in several: `ttft:500 tpot:30`."""
    return dict(_objective(word) for text in texts for word in text.split())


def _objective(text: str) -> tuple[str, Any]:
    metric, colon, limit = text.partition(":")
    if not colon:
        raise UserError(f"--goodput '{text}' is not of the form metric:milliseconds, as ttft:500")
    return metric, parse_number(limit, f"--goodput {metric}")


def scenario_from(
    options: dict[str, Any],
    config: Path | None,
    settings: list[str] | None,
    without: tuple[str, ...] = (),
) -> Scenario:
    """Merge file, options and settings, the later winning."""
    chosen = {key: value for key, value in options.items() if key not in without}
    values = read_toml(config) if config else {}
    if LOADS & options.keys():
        values = {key: value for key, value in values.items() if key not in LOADS}
    for key, value in chosen.items():
        table = isinstance(value, dict) and isinstance(values.get(key), dict)
        values[key] = {**values[key], **value} if table else value
    values = with_settings(values, settings or [])
    place = str(config) if config else "the scenario"
    for key in values:
        if key not in Scenario.model_fields:
            raise unknown_name("key", key, Scenario.model_fields, place)
    if "profile" not in values:
        raise UserError("no engine profile is given: --profile NAME (dspark-sim ls lists them)")
    return Scenario.check(values, place)


def one(options: dict[str, Any], key: str, values: Any) -> None:
    """Put the single value of a repeatable option in its place; several belong to a sweep."""
    if values is not None:
        if len(values) != 1:
            raise UserError(f"simulate takes one {key}, got {len(values)}; sweep takes several")
        options[key] = values[0]


def numbers(text: str | None, what: str) -> list[float]:
    """Expand an option's list or range of numbers; nothing given is an empty list."""
    return [] if text is None else expand_range(text, what)


def whole_numbers(text: str | None, what: str) -> list[int]:
    """Expand an option's list or range of whole numbers from 1 on."""
    values = numbers(text, what)
    for value in values:
        if not value.is_integer() or value < 1:
            raise UserError(f"{what} must be whole numbers of 1 or more, got {value:g}")
    return [int(value) for value in values]


def named_numbers(texts: list[str] | None, option: str, whole: bool = False) -> dict[str, float]:
    """Read the repeatable option NAME=NUMBER; the last `=` separates, the number is 0 or more."""
    found: dict[str, float] = {}
    for text in texts or []:
        name, equals, number = text.rpartition("=")
        if not equals or not name.strip():
            raise UserError(f"{option} '{text}' is not of the form NAME=NUMBER")
        value = parse_number(number, f"{option} {name}")
        if value < 0 or (whole and not value.is_integer()):
            kind = "a whole number" if whole else "a number"
            raise UserError(f"{option} {name} must be {kind} of 0 or more, got {number}")
        found[name.strip()] = value
    return found
