"""Finding a trace by what a user types: a generator, a file, or the name of a shipped trace."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_sim.core import UserError, parse_number, parse_spec, shipped_dir, unknown_name
from dspark_sim.trace.files import read_trace
from dspark_sim.trace.synthesis import KINDS, synthesize

if TYPE_CHECKING:
    from dspark_sim.trace.trace import Trace

SYNTH = "synth"
LENGTH_KEYS = {
    "in": ("input_tokens",),
    "out": ("output_tokens",),
    "in_sigma": ("input_sigma",),
    "out_sigma": ("output_sigma",),
    "in_max": ("input_max",),
    "out_max": ("output_max",),
    "max": ("input_max", "output_max"),
}
OTHER_KEYS = ("rate", "process", "cv", "category", "from")


def load_trace(spec: str | Path, num_requests: int | None = None, seed: int = 0) -> Trace:
    """Return the trace that `spec` names, cut or drawn to `num_requests`.

    `spec` is `synth:KIND,key=value,...` (1,000 requests unless told; `seed` counts here only), the
    path of a file in a recognised format, or a shipped trace's name. Keys of `synth`: `in`, `out`
    (median tokens), `in_sigma`, `out_sigma`, `in_max`, `out_max`, `max` (both), `rate` (requests
    per second or `inf`), `process`, `cv`, `category`, `from` (empirical: a path or shipped name).
    A file with fewer requests than asked for is an error.
    """
    text = str(spec)
    if text == SYNTH or text.startswith(f"{SYNTH}:"):
        return _synthetic(text, 1_000 if num_requests is None else num_requests, seed)
    trace = _stored(text)
    return trace if num_requests is None else trace.head(num_requests)


def list_traces() -> list[dict[str, str]]:
    """Name and origin of every shipped trace, then of every generator (`synth:KIND`)."""
    origins = _origins()
    shipped = [
        {"name": path.stem, "origin": origins.get(path.stem, "no origin recorded")}
        for path in _shipped().values()
    ]
    generators = [
        {"name": f"{SYNTH}:{name}", "origin": f"generator: {kind.about}"}
        for name, kind in KINDS.items()
    ]
    return shipped + generators


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_dir("traces").glob("*.jsonl"))}


def _origins() -> dict[str, str]:
    file = shipped_dir("traces") / "origin.toml"
    if not file.is_file():
        return {}
    entries = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: str(entry["origin"]) for name, entry in entries.items()}


def _stored(text: str) -> Trace:
    path, shipped = Path(text), _shipped()
    if path.is_file() or (path.is_dir() and text not in shipped):
        return read_trace(path)
    if text in shipped:
        trace = read_trace(shipped[text])
        return replace(trace, origin=_origins().get(text, trace.origin))
    known = [*shipped, *(f"{SYNTH}:{kind}" for kind in KINDS)]
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"no trace file {text}, allowed: a path, or one of {', '.join(known)}")
    raise unknown_name("trace", text, known)


def _synthetic(spec: str, num_requests: int, seed: int) -> Trace:
    _, positional, keys = parse_spec(spec)
    if len(positional) != 1 or positional[0] not in KINDS:
        raise unknown_name("kind of synthetic trace", ",".join(positional), KINDS, f"'{spec}'")
    lengths: dict[str, float] = {}
    for key, value in keys.items():
        if key in LENGTH_KEYS:
            number = parse_number(value, f"'{spec}': {key}")
            lengths.update(dict.fromkeys(LENGTH_KEYS[key], number))
        elif key not in OTHER_KEYS:
            raise unknown_name("key", key, [*LENGTH_KEYS, *OTHER_KEYS], f"'{spec}'")
    rate = keys.get("rate")
    return synthesize(
        positional[0],
        num_requests,
        seed,
        rate_per_s=_rate(rate, spec) if rate is not None else None,
        process=keys.get("process", "poisson"),
        cv=parse_number(keys["cv"], f"'{spec}': cv") if "cv" in keys else None,
        category=keys.get("category"),
        source=_stored(keys["from"]) if "from" in keys else None,
        **lengths,
    )


def _rate(text: str, spec: str) -> float:
    return math.inf if text == "inf" else parse_number(text, f"'{spec}': rate")
