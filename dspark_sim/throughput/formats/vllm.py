"""vLLM: the cost tables of adaptive verification, and the table of draft lengths by batch size."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError, parse_number
from dspark_sim.throughput.formats.build import Tables, build_profile
from dspark_sim.throughput.formats.knots import captured_knots, linear_knots
from dspark_sim.throughput.formats.source import line_at
from dspark_sim.throughput.formats.terms import USUAL_DRAFT_LEN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dspark_sim.throughput.formats.build import ImportOptions
    from dspark_sim.throughput.formats.terms import Floats, Sizes
    from dspark_sim.throughput.profile import EngineProfile

    Points = tuple[Sizes, Floats]

TABLES = re.compile(r"cost[ _]tables\b[^\[\n]*", re.IGNORECASE)
CURVE = re.compile(r"\b(draft|verify)[ _]curve\b[^\[\n]*", re.IGNORECASE)
_BOTH = {"draft", "verify"}
_PRINTED = 3e-8  # numpy prints eight digits after the point


def recognise(text: str) -> bool:
    """Say whether a text holds vLLM's tables or the curves they are made of."""
    return bool(TABLES.search(text) or {m[1].lower() for m in CURVE.finditer(text)} == _BOTH)


def read_log(path: Path, text: str, options: ImportOptions) -> EngineProfile:
    """Read the last cost tables in a log.

    Either the debug line `DSpark cost tables: (array([…]), array([…]))`, draft cost by number of
    requests and verify cost by target tokens, in ms, from 0 on; or the curves that such tables
    are made of, `draft curve …: [(requests, ms), …]` and `verify curve …: [(tokens, ms), …]`.
    The `capture_limit` of the options says where CUDA graphs end.
    """
    limit = options.keys.get("capture_limit")
    tables = list(TABLES.finditer(text))
    curves = {match[1].lower(): match.end() for match in CURVE.finditer(text)}
    if not tables and curves.keys() != _BOTH:
        raise UserError(f"{path.name}: no line 'DSpark cost tables: …' is there, nor both curves")
    found = _read_tables if tables else _read_curves
    where = {"tables": tables[-1].end()} if tables else curves
    draft, verify, reach, method = found(path, text, where, limit)
    length = options.draft_len or USUAL_DRAFT_LEN
    capture = f"CUDA graphs end at {limit} tokens, as given."
    if limit is None:
        capture = "Where CUDA graphs end is not in the log: every size is read as captured."
    return build_profile(
        path,
        options,
        "vLLM cost tables",
        Tables(
            verify=pd.DataFrame({"batch_tokens": verify[0], "ms": verify[1]}),
            draft=pd.DataFrame({"num_requests": draft[0], "draft_len": length, "ms": draft[1]}),
        ),
        {
            "lookup": "captured",
            "drafter": "block",
            "max_num_seqs": reach[0],
            "max_num_batched_tokens": reach[1],
        },
        {
            "method": method,
            "capture": capture,
            "draft": f"A block drafter; its cost is entered at {length} tokens and holds for all.",
        },
    )


def _read_tables(
    path: Path, text: str, where: Mapping[str, int], limit: object
) -> tuple[Points, Points, tuple[int, int], str]:
    """Return draft and verify points, how far they reach, and how they were made."""
    draft, end = _dense(path, text, where["tables"], "draft")
    verify, _ = _dense(path, text, end, "verify")
    method = "The dense tables as vLLM uses them, running maximum included; rows are the sizes "
    method += "where they change."
    reach = int(draft[0][-1]), int(verify[0][-1])
    return captured_knots(*draft), _verify_points(*verify, limit), reach, method


def _read_curves(
    path: Path, text: str, where: Mapping[str, int], _: object
) -> tuple[Points, Points, tuple[int, int], str]:
    """Return draft and verify points, how far they reach, and how they were made."""
    draft, verify = (_pairs(path, text, where[kind], kind) for kind in ("draft", "verify"))
    method = "The profiled curves, dips included; vLLM takes their running maximum."
    return draft, verify, (int(draft[0][-1]), int(verify[0][-1])), method


def _verify_points(sizes: Sizes, ms: Floats, limit: object) -> tuple[Sizes, Floats]:
    """Return steps up to the capture limit and the ends of straight lines beyond it."""
    if not isinstance(limit, int) or limit >= sizes[-1]:
        return captured_knots(sizes, ms)
    inside = sizes <= limit
    steps = captured_knots(sizes[inside], ms[inside])
    lines = linear_knots(sizes[~inside], ms[~inside], _PRINTED)
    return np.append(steps[0], lines[0]), np.append(steps[1], lines[1])


def _bracketed(path: Path, text: str, start: int, kind: str) -> tuple[str, int, int]:
    """Return what the next pair of brackets holds, and where it begins and ends."""
    begin = text.find("[", start)
    end = text.find("]", begin)
    if begin < 0 or end < 0:
        raise UserError(f"{path.name} line {line_at(text, start)}: the {kind} table is missing")
    return text[begin + 1 : end], begin, end


def _dense(path: Path, text: str, start: int, kind: str) -> tuple[tuple[Sizes, Floats], int]:
    """Return a table from size 1 on, and where it ends in the text."""
    inside, begin, end = _bracketed(path, text, start, kind)
    where = f"{path.name} line {line_at(text, begin)}: the {kind} table"
    if "..." in inside:
        raise UserError(
            f"{where} is shortened ('...'): let numpy print it whole, with "
            "np.set_printoptions(threshold=np.inf)"
        )
    values = np.array([parse_number(cell, where) for cell in inside.replace(",", " ").split()])
    if len(values) < 2:
        raise UserError(f"{where} must reach from 0 to the largest size, got {len(values)} entries")
    return (np.arange(1, len(values)), values[1:]), end


def _pairs(path: Path, text: str, start: int, kind: str) -> tuple[Sizes, Floats]:
    """Return the sizes and costs of a list of pairs."""
    inside, begin, _ = _bracketed(path, text, start, kind)
    where = f"{path.name} line {line_at(text, begin)}: the {kind} curve"
    cells = re.findall(r"\(([^,()]+),([^,()]+)\)", inside)
    if not cells or "..." in inside:
        raise UserError(f"{where} must be a list of (size, ms) pairs")
    sizes = np.array([parse_number(size, where) for size, _ in cells])
    ms = np.array([parse_number(cost, where) for _, cost in cells])
    if (sizes != np.floor(sizes)).any() or (sizes < 1).any() or (np.diff(sizes) <= 0).any():
        raise UserError(f"{where} must have whole sizes from 1 on that rise")
    return sizes.astype(np.int64), ms


def batch_size_schedule(schedule: Mapping[int, int]) -> list[list[int]]:
    """Return vLLM's `num_speculative_tokens_per_batch_size`: ranges of batch size with their k.

    Parameters
    ----------
    schedule : mapping of int to int
        Batch size to draft length, as a study finds it best. A length holds for batches larger
        than the size before, up to its own: with load the best length falls, so that the batches
        between two sizes are never drafted for more than was found good. Beyond the last size
        vLLM keeps the last length.

    Returns
    -------
    list of [first, last, k]
        Inclusive, from 1 on, without gaps; neighbours of equal length are joined.

    Examples
    --------
    >>> batch_size_schedule({64: 16, 128: 8, 192: 0, 256: 0})
    [[1, 64, 16], [65, 128, 8], [129, 256, 0]]
    """
    if not schedule:
        raise UserError("the schedule is empty: it needs at least one batch size")
    ranges: list[list[int]] = []
    for size, length in sorted(schedule.items()):
        if size < 1 or length < 0:
            raise UserError(
                f"the schedule needs batch sizes from 1 and draft lengths from 0, "
                f"got {size}: {length}"
            )
        if ranges and ranges[-1][2] == length:
            ranges[-1][1] = int(size)
        else:
            ranges.append([ranges[-1][1] + 1 if ranges else 1, int(size), int(length)])
    return ranges


def speculative_config(schedule: Mapping[int, int]) -> dict[str, object]:
    """Return the two keys of vLLM's `--speculative-config` that a schedule decides.

    >>> speculative_config({8: 3, 64: 1})["num_speculative_tokens"]
    3
    """
    ranges = batch_size_schedule(schedule)
    longest = max(length for _, _, length in ranges)
    return {
        "num_speculative_tokens": longest,
        "num_speculative_tokens_per_batch_size": ranges,
    }
