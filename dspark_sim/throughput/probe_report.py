"""A probe as an engine profile, with a table of what was seen beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import UserError, whole_file
from dspark_sim.throughput.files import write_profile
from dspark_sim.throughput.formats.build import ImportOptions, Tables, build_profile
from dspark_sim.throughput.schema import check_header

if TYPE_CHECKING:
    import pandas as pd

    from dspark_sim.throughput.probe import Probed
    from dspark_sim.throughput.profile import EngineProfile

LEVELS = "probe.csv"
_DIGITS = 6
_ONE = 1.05
_BUNDLED = 1.1


def check_probe_output(folder: str | Path, options: ImportOptions) -> None:
    """Raise before a probe starts for what would keep its profile from being written."""
    if Path(folder).is_file():
        raise UserError(f"{folder}: is a file, a folder is needed")
    told = {"engine": "-", "model": "-", "gpu": "-", "num_gpus": 1, "kv_tokens": "unlimited"}
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 1}
    rules = {"lookup": "linear", "drafter": "block", "draft_in_verify": True}
    keys = {"name": "probe", **told, **limits, **rules, **options.keys}
    check_header({**keys, "provenance": {"source": "-"}}, "the settings of the profile")


def write_probe(probed: Probed, folder: str | Path, options: ImportOptions) -> EngineProfile:
    """Write a probe as a profile folder, with every load's numbers in `probe.csv`."""
    profile = probed_profile(probed, options)
    with whole_file(folder) as aside:
        write_profile(profile, aside)
        levels = probed.levels.round(_DIGITS)
        levels.to_csv(aside / LEVELS, index=False, lineterminator="\n")
    return profile


def probed_profile(probed: Probed, options: ImportOptions) -> EngineProfile:
    """Return the profile of a probe: verify[R × (1 + k)] with drafting inside.

    Where the server tells its own steps, their overhead is taken off, spread included.
    """
    levels = probed.levels
    verify = _verify(levels)
    speculates = bool((levels["batch_tokens"] > levels["num_requests"]).any())
    told: dict[str, Any] = {
        "engine": probed.engine or "not stated",
        "model": probed.model,
        "max_num_seqs": int(levels["num_requests"].max()),
        "max_num_batched_tokens": int(verify["batch_tokens"].max()),
        "lookup": "linear",
        "drafter": "block" if speculates else "none",
        "draft_in_verify": speculates,
    }
    notes = {"source": f"Probed at {probed.url}", **_notes(probed, speculates)}
    profile = build_profile(Path("probe"), options, "probe", Tables(verify), told, notes)
    provenance = {
        key: text.replace("Not in the file", "Not told by the server") if key == "assumed" else text
        for key, text in profile.provenance.items()
    }
    return replace(profile, provenance=provenance)


def _verify(levels: pd.DataFrame) -> pd.DataFrame:
    """Return the verify table; rows of one size differ in R."""
    off = levels["overhead_ms"].fillna(0.0)
    table = levels[["batch_tokens", "num_requests", "kv_tokens_read"]].copy()
    for column in ("ms", "p10_ms", "p90_ms"):
        table[column] = (levels[column] - off).round(_DIGITS)
    table["n"] = levels["n"]
    return table.sort_values(["batch_tokens", "num_requests"]).reset_index(drop=True)


def _notes(probed: Probed, speculates: bool) -> dict[str, str]:
    levels, settings = probed.levels, probed.settings
    counts = ", ".join(str(value) for value in levels["num_requests"])
    notes = {
        "method": (
            f"Closed loops of R = {counts} streams of {settings.output_tokens} tokens, temperature "
            f"{settings.temperature:g}, end-of-text ignored; ms, p10_ms, p90_ms and n are of the "
            "times between a stream's chunks while all R streams decode; each step counts once "
            "per stream."
        ),
        "overhead": overhead_note(probed),
        "range": (
            "A probe sees whole steps: drafting, sampling and scheduling are inside verify, so "
            "draft_in_verify is true where the server speculates. It sees no prefill: simulate "
            "with prefill none, and with --extend below the smallest batch."
        ),
    }
    lengths = levels["acceptance_length"].dropna()
    if speculates:
        drafts = levels["num_speculative_tokens"]
        notes["speculation"] = f"Drafts of {drafts.min():.3g} to {drafts.max():.3g} tokens" + (
            f", acceptance length {lengths.min():.3g} to {lengths.max():.3g}."
            if len(lengths)
            else "."
        )
    elif (levels["tokens_per_chunk"] > _ONE).any():
        notes["speculation"] = untold_note(probed)
    if (levels["drafts_per_chunk"] > _BUNDLED).any():
        notes["bundled"] = (
            f"The server counts up to {levels['drafts_per_chunk'].max():.3g} drafts per chunk: "
            "chunks came together on their way, and times between them are of several steps."
        )
    if probed.left_out:
        notes["left_out"] = "; ".join(probed.left_out) + "."
    if probed.failure is not None:
        notes["failure"] = probed.failure
    return notes


def overhead_note(probed: Probed) -> str:
    """Say what of the time between chunks is the server's HTTP side, and how that is known."""
    levels = probed.levels
    known = levels["overhead_ms"].notna()
    parts = f"a request for one token takes {probed.request_ms:.3g} ms"
    if np.isfinite(probed.health_ms):
        parts += f", /health {probed.health_ms:.3g} ms"
    if not known.any():
        return (
            "Nothing is subtracted: the server does not tell its own steps, and the time a chunk "
            f"travels cancels between two chunks; for comparison, {parts}."
        )
    shares = ", ".join(
        f"{row.overhead_ms:.3g} ms at R = {row.num_requests}" for row in levels[known].itertuples()
    )
    return (
        "Subtracted from ms, p10_ms and p90_ms: mean time between chunks (from p10 to p90) "
        f"less the mean of the server's own steps of R requests, {shares}; "
        f"for comparison, {parts}. {LEVELS} has both."
    )


def untold_note(probed: Probed) -> str:
    """Say that a server seems to speculate without telling how far."""
    most = probed.levels["tokens_per_chunk"].max()
    return (
        f"Chunks hold up to {most:.3g} tokens on average, but the server reports no drafts: it "
        "speculates or bundles steps; batch_tokens counts one token per request "
        "unless --num-speculative-tokens tells k."
    )
