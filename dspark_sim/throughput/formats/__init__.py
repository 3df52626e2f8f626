"""Profiles to and from the tables of other programs, each with its own lookup semantics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_sim.core import UserError, unknown_name, whole_file
from dspark_sim.throughput.formats.build import ImportOptions
from dspark_sim.throughput.formats.inference_lab import COLUMNS, read_steps, steps_csv
from dspark_sim.throughput.formats.llmservingsim import read_layers
from dspark_sim.throughput.formats.sglang import (
    additive_table,
    flat_table,
    read_additive,
    read_flat,
)
from dspark_sim.throughput.formats.source import JsonObject, read_text
from dspark_sim.throughput.formats.tensorrt import legacy_table, read_legacy
from dspark_sim.throughput.formats.tensorrt_exact import exact_table, read_exact
from dspark_sim.throughput.formats.vllm import (
    batch_size_schedule,
    read_log,
    recognise,
    speculative_config,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from dspark_sim.throughput.profile import EngineProfile

    Reader = Callable[[Path, str, ImportOptions], EngineProfile]
    Writer = Callable[[EngineProfile, "int | None", int], "dict[str, Any] | str"]

__all__ = [
    "FORMATS",
    "WRITERS",
    "ImportOptions",
    "batch_size_schedule",
    "export_profile",
    "import_profile",
    "speculative_config",
]


@dataclass(frozen=True)
class Format:
    """A file format: what it is recognised by, and how it is read."""

    mark: str
    read: Reader


FORMATS = {
    "sglang": Format("sample_batch_tokens", read_flat),
    "sglang-additive": Format("bias_seconds", read_additive),
    "trt-gv": Format("schema_version", read_exact),
    "trt": Format("token_counts", read_legacy),
    "inference-lab": Format(",".join(COLUMNS), read_steps),
    "vllm": Format("DSpark cost tables:", read_log),
    "llmservingsim": Format(
        "folder with dense.csv", lambda path, _, options: read_layers(path, options)
    ),
}

WRITERS: dict[str, Writer] = {
    "sglang": flat_table,
    "sglang-additive": additive_table,
    "trt": legacy_table,
    "trt-gv": exact_table,
    "inference-lab": steps_csv,
}


def import_profile(
    path: str | Path, options: ImportOptions | None = None, format: str | None = None
) -> EngineProfile:
    """Read another program's table as a profile.

    Parameters
    ----------
    path : str or Path
        A file, or LLMServingSim's folder.
    options : ImportOptions, optional
        What the table does not say.
    format : str, optional
        One of `FORMATS`; by default recognised by its content.

    Raises
    ------
    UserError
        A sentence that names file, line and key.
    """
    path, options = Path(path), options or ImportOptions()
    if format is not None and format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if path.is_dir():
        if format not in (None, "llmservingsim") or not (path / "dense.csv").exists():
            raise UserError(f"{path}: is a folder without LLMServingSim's dense.csv; {_allowed()}")
        return read_layers(path, options)
    text = read_text(path)
    chosen = format or _recognise(path, text)
    if chosen == "llmservingsim":
        raise UserError(f"{path}: LLMServingSim's profile is a folder with dense.csv")
    return FORMATS[chosen].read(path, text, options)


def _recognise(path: Path, text: str) -> str:
    """Return the name of the format that a text is in."""
    start = text.lstrip()
    if start.startswith("{"):
        keys = JsonObject.parse(path.name, text).values
        if "cost_tables" in keys:
            return "trt-gv"
        for name in ("sglang-additive", "sglang", "trt-gv", "trt"):
            if FORMATS[name].mark in keys:
                return name
        found = ", ".join(list(keys)[:6])
        raise UserError(f"{path}: '{found}' are the keys of no known table; {_allowed()}")
    header = [cell.strip() for cell in start.partition("\n")[0].split(",")]
    if set(COLUMNS) <= set(header):
        return "inference-lab"
    if recognise(text):
        return "vllm"
    raise UserError(f"{path}: is in no known format; {_allowed()}")


def _allowed() -> str:
    return "allowed: " + ", ".join(f"{name} ({one.mark})" for name, one in FORMATS.items())


def export_profile(
    profile: EngineProfile,
    path: str | Path,
    format: str,
    *,
    draft_len: int | None = None,
    context: int = 0,
    graphs: Sequence[int] | None = None,
    fingerprint: str | Path | None = None,
) -> Path:
    """Write a profile as another program's table. Whole or not at all.

    Parameters
    ----------
    profile : EngineProfile
    path : str or Path
    format : str
        "sglang", "sglang-additive", "trt", "trt-gv" or "inference-lab".
    draft_len : int, optional
        Length of the drafts whose cost the steps contain; by default the longest measured.
    context : int
        KV tokens per request: these tables have no axis for context, so it goes into α(R).
    graphs : sequence of int, optional
        For "trt-gv": the captured numbers of requests.
    fingerprint : str or Path, optional
        For "trt-gv": JSON with the running engine's fingerprint.
    """
    if format not in WRITERS:
        raise unknown_name("format", format, WRITERS)
    if format != "trt-gv" and (graphs is not None or fingerprint is not None):
        raise UserError("captured graphs and a fingerprint belong to the format 'trt-gv' alone")
    if format == "trt-gv":
        mark = None
        if fingerprint is not None:
            mark = JsonObject.parse(Path(fingerprint).name, read_text(fingerprint))
        content: dict[str, Any] | str = exact_table(profile, draft_len, context, graphs, mark)
    else:
        content = WRITERS[format](profile, draft_len, context)
    with whole_file(path) as aside:
        aside.write_text(content if isinstance(content, str) else _json(content), encoding="utf-8")
    return Path(path)


def _json(content: dict[str, Any]) -> str:
    """Write an object with one key a line, so that a message can name it."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
