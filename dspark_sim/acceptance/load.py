"""Acceptance sources by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from dspark_sim.acceptance.law import ParametricAcceptance, geometric, minimum_variance
from dspark_sim.acceptance.law_file import read_law
from dspark_sim.acceptance.mixture import MixedAcceptance
from dspark_sim.acceptance.published import ACCEPTANCE_LENGTHS, CONDITIONAL_RATES, ORIGINS
from dspark_sim.acceptance.recorded import read_recording, recording_metadata, recording_origin
from dspark_sim.core import UserError, parse_number, parse_spec, shipped_dir, unknown_name

if TYPE_CHECKING:
    from dspark_sim.acceptance.source import AcceptanceSource

_LAW_KEYS = {
    "request_sd": "request_sd",
    "token_sd": "token_sd",
    "scale": "confidence_scale",
    "bias": "confidence_bias",
    "noise": "confidence_noise",
}
_SYNTHETIC = {"geometric": geometric, "minvar": minimum_variance}


def load_acceptance(spec: str, num_speculative_tokens: int = 7) -> AcceptanceSource:
    """Return the acceptance source that `spec` names.

    Forms: a shipped law (`chat-dspark`) or a law's file (`fit/acceptance.toml`), each with
    `request_sd=, token_sd=, scale=, bias=, noise=` or `auc=` after a colon; a Parquet recording
    (path or shipped name); `geometric:LENGTH` and `minvar:LENGTH` (mean acceptance length at
    `num_speculative_tokens`, bonus included); or a mixture by request category,
    `mix:math=math-dspark,default=chat-dspark`.
    """
    name, positional, keywords = parse_spec(spec)
    if name == "mix":
        if positional:
            raise UserError(
                f"acceptance '{spec}': '{positional[0]}' is not of the form category=NAME"
            )
        return _mixture(spec, keywords, num_speculative_tokens)
    if name in _SYNTHETIC:
        if len(positional) != 1 or keywords:
            raise UserError(f"acceptance '{spec}': write {name}:LENGTH, as in {name}:3.5")
        length = parse_number(positional[0], f"acceptance '{spec}': the length")
        return _SYNTHETIC[name](length, num_speculative_tokens)
    if name in ORIGINS or name.endswith(".toml"):
        return _law(spec, name, positional, keywords)
    path = _recording_path(spec)
    if path is None:
        raise unknown_name("acceptance", name, [row["name"] for row in list_acceptance()])
    return read_recording(path)


def list_acceptance() -> list[dict[str, str]]:
    """Return name and origin of every shipped law and recording, and of the synthetic forms."""
    rows = [{"name": name, "origin": origin} for name, origin in ORIGINS.items()]
    rows += [
        {"name": path.stem, "origin": recording_origin(path)}
        for path in sorted(shipped_dir("traces").glob("*.parquet"))
    ]
    return [
        *rows,
        {"name": "geometric:LENGTH", "origin": "synthetic: every draft token alike"},
        {"name": "minvar:LENGTH", "origin": "synthetic: vLLM's minimum-variance schedule"},
    ]


def recording_about(spec: str) -> dict[str, Any]:
    """Return what the recorder wrote about its drafter, target and temperature; {} for a law."""
    path = _recording_path(spec)
    return {} if path is None else recording_metadata(pq.read_schema(path))


def _published(name: str) -> ParametricAcceptance:
    return ParametricAcceptance(
        name,
        rates=CONDITIONAL_RATES.get(name, ()),
        lengths=ACCEPTANCE_LENGTHS.get(name, ()),
        origin=ORIGINS[name],
    )


def _law(
    spec: str, name: str, positional: list[str], keywords: dict[str, str]
) -> ParametricAcceptance:
    if positional:
        raise UserError(f"acceptance '{spec}': '{positional[0]}' is not of the form key=value")
    law = replace(_published(name) if name in ORIGINS else read_law(name), name=spec)
    auc = keywords.pop("auc", None)
    if auc is not None and "noise" in keywords:
        raise UserError(f"acceptance '{spec}': give either noise or auc, which sets the noise")
    for key, value in keywords.items():
        if key not in _LAW_KEYS:
            raise unknown_name("key", key, [*_LAW_KEYS, "auc"], f"acceptance '{spec}'")
        changes: dict[str, Any] = {
            _LAW_KEYS[key]: parse_number(value, f"acceptance '{spec}': {key}")
        }
        law = replace(law, **changes)
    return law if auc is None else law.with_auc(parse_number(auc, f"acceptance '{spec}': auc"))


def _mixture(spec: str, keywords: dict[str, str], num_speculative_tokens: int) -> MixedAcceptance:
    parts = {key: load_acceptance(value, num_speculative_tokens) for key, value in keywords.items()}
    default = parts.pop("default", None)
    return MixedAcceptance(spec, parts, default)


def _recording_path(spec: str) -> Path | None:
    for path in (Path(spec), shipped_dir("traces") / f"{spec}.parquet"):
        if path.suffix == ".parquet" and path.is_file():
            return path
    return None
