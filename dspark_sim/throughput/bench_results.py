"""Benchmark results of closed loops: files of `vllm bench serve --save-result`, or CSV tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dspark_sim.core import UserError, unknown_name
from dspark_sim.throughput.bench_json import (
    ClosedLoopResult,
    K,
    agree,
    check_length,
    read_loop,
)
from dspark_sim.throughput.formats.source import JsonObject, read_csv, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dspark_sim.throughput.formats.source import CsvRow

_RATES = ("tok_s_user_mean", "tok_s_user", "interactivity_tok_s_user", "tok/s/user")
_TOTALS = ("output_tok_s", "throughput_tok_s", "tok_s_total", "output_throughput", "tok/s")
_PLAIN = re.compile(r"none|no[-_ ]?spec(ulation)?|autoregressive")
_FIXED = re.compile(r"(?:fixed|static)?[:_ -]?k?=?(\d+)")


@dataclass(frozen=True)
class BenchResults:
    """Closed loops with fixed draft lengths, as they were read.

    Attributes
    ----------
    points : DataFrame
        One row per closed loop, with the columns of `ClosedLoopResult`.
    left_out : tuple of str
        Policies of tables whose draft length is not fixed or not known.
    files : tuple of str
        Names of the files.
    model : str
        The model that the files agree on; empty where none names it.
    """

    points: pd.DataFrame
    left_out: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    model: str = ""


def read_results(
    paths: Sequence[str | Path], draft_lens: Mapping[str, int] | None = None
) -> BenchResults:
    """Read results of one engine at several concurrencies and draft lengths.

    A JSON file is one closed loop. Its draft length is what it tells itself: draft tokens per
    draft, `num_speculative_tokens` or `speculative_config` (which `vllm bench sweep` adds). A CSV
    has columns policy, concurrency, tok_s_user and, where known, output_tok_s, acceptance_length
    and num_speculative_tokens; policies `none`, `nospec`, `fixed:3`, `fixed_k3` and `k3` tell
    their draft length.

    Parameters
    ----------
    paths : sequence of str or Path
        Files; those ending in .csv are tables.
    draft_lens : mapping, optional
        Draft length by file or policy name (`*` and `?` match), for those that do not tell it.

    Raises
    ------
    UserError
        A sentence naming file, line and key.
    """
    told = _Told(dict(draft_lens or {}))
    loops: list[ClosedLoopResult] = []
    models: set[str] = set()
    for path in map(Path, paths):
        text = read_text(path)
        if path.suffix.lower() == ".csv":
            loops += [_table_row(row, told) for row in _table(path, text)]
            continue
        result = JsonObject.parse(str(path), text)
        loops.append(read_loop(result, path, told.find(path.name, path.stem, str(path))))
        models.add(str(result.values.get("model_id") or ""))
    told.check_used()
    models.discard("")
    if len(models) > 1:
        raise UserError(f"the results are of several models, {', '.join(sorted(models))}: fit one")
    columns = [field.name for field in fields(ClosedLoopResult)]
    points = pd.DataFrame([vars(loop) for loop in loops], columns=columns)
    fixed = points[K] >= 0
    if not fixed.any():
        hint = f", as in --draft-len '{points['source'].iloc[0]}=3'" if len(points) else ""
        raise UserError(f"there is no result whose draft length is fixed and known{hint}")
    left_out = tuple(dict.fromkeys(points["source"][~fixed]))
    files = tuple(Path(path).name for path in paths)
    return BenchResults(points[fixed].reset_index(drop=True), left_out, files, "".join(models))


class _Told:
    """Draft lengths that the user told, by name or pattern, and which of them were of use."""

    def __init__(self, draft_lens: Mapping[str, int]) -> None:
        self._draft_lens = draft_lens
        self._used: set[str] = set()
        self._seen: list[str] = []

    def find(self, *names: str) -> int | None:
        """Return the draft length of whatever has one of these names."""
        self._seen.append(names[0])
        for pattern, draft_len in self._draft_lens.items():
            if any(fnmatch(name, pattern) for name in names):
                self._used.add(pattern)
                return draft_len
        return None

    def check_used(self) -> None:
        """Refuse a name that nothing has."""
        for pattern in self._draft_lens:
            if pattern not in self._used:
                raise unknown_name("result", pattern, dict.fromkeys(self._seen))


def _table(path: Path, text: str) -> list[CsvRow]:
    rows = read_csv(path, ("policy", "concurrency"), text)
    if not set(_RATES) & rows[0].cells.keys():
        raise UserError(f"{path} line 1: the column 'tok_s_user' is missing")
    return rows


def _table_row(row: CsvRow, told: _Told) -> ClosedLoopResult:
    """Return one closed loop of a table."""
    policy = row.cells["policy"].strip()
    k = agree(told.find(policy), _named_draft_len(row, policy), row.where)
    if k is None:
        return ClosedLoopResult(policy, -1, 1, float("nan"))
    rate = _cell(row, _RATES)
    if rate is None:
        raise UserError(f"{row.where}: tok_s_user is empty")
    length, total = _cell(row, ("acceptance_length",)) if k else None, _cell(row, _TOTALS)
    if length is not None:
        check_length(length, k, f"{row.where}: acceptance_length")
    return ClosedLoopResult(
        policy,
        k,
        row.whole("concurrency"),
        rate,
        float("nan") if total is None else total,
        float("nan") if length is None else length,
    )


def _named_draft_len(row: CsvRow, policy: str) -> int | None:
    """Return the draft length that a row tells in its own column or by its policy's name."""
    if row.cells.get(K, "").strip():
        return row.whole(K, least=0)
    if _PLAIN.fullmatch(policy.lower()):
        return 0
    fixed = _FIXED.fullmatch(policy.lower())
    return int(fixed[1]) if fixed else None


def _cell(row: CsvRow, names: Sequence[str]) -> float | None:
    """Return the number in the first of these columns that the row fills, if any."""
    for name in names:
        if row.cells.get(name, "").strip():
            return row.number(name, above=True)
    return None
