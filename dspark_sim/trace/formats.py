"""The trace formats of other programs: their keys, their units, and how a file is recognised."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dspark_sim.core import NS_PER_MS, NS_PER_S, UserError
from dspark_sim.trace import rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dspark_sim.trace.rules import FloatArray

Row = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """A trace format: the keys of time, prompt and output; `unit_ns` is None where time is a date.

    A file is recognised by these keys alone, as CSV columns or as JSON keys. `category` and
    `request_id` are read where present; other keys are ignored.
    """

    name: str
    time_key: str
    prompt_key: str
    output_key: str
    unit_ns: int | None

    @property
    def keys(self) -> dict[str, str]:
        """The trace's columns and the keys they are read from."""
        return {
            "arrival_s": self.time_key,
            "prompt_tokens": self.prompt_key,
            "output_tokens": self.output_key,
            "request_id": "request_id",
            "category": "category",
        }

    def __str__(self) -> str:
        return f"{self.name} ({self.time_key}, {self.prompt_key}, {self.output_key})"


LAYOUTS = (
    Layout("Mooncake JSONL", "timestamp", "input_length", "output_length", NS_PER_MS),
    Layout("LLMServingSim JSONL", "arrival_time_ns", "input_toks", "output_toks", 1),
    Layout("Azure CSV", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    Layout("Vidur CSV", "arrived_at", "num_prefill_tokens", "num_decode_tokens", NS_PER_S),
    Layout("Splitwise CSV", "arrival_timestamp", "prompt_size", "token_size", NS_PER_S),
)


def allowed() -> str:
    """List the recognised formats for an error message."""
    return "allowed: " + ", ".join(map(str, LAYOUTS))


def recognise(row: Row, where: str) -> Layout:
    """Find the layout whose three keys the first row has."""
    for layout in LAYOUTS:
        if {layout.time_key, layout.prompt_key, layout.output_key} <= row.keys():
            return layout
    found = ", ".join(str(key)[:40] for key in list(row)[:8])
    raise UserError(f"{where}: '{found}' are the keys of no trace format, {allowed()}")


def read_rows(path: Path) -> tuple[list[Row], list[int]]:
    """Read a CSV or JSONL file into one dict per request and the line each stands on."""
    if path.is_dir():
        raise UserError(f"{path} is a directory, expected a trace file, {allowed()}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), {allowed()}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file, {allowed()}") from None
    if "\0" in text:
        raise UserError(f"{path} is not a text file, {allowed()}")
    rows, lines = (_json_rows if text.lstrip().startswith("{") else _csv_rows)(text, path)
    if not rows:
        raise UserError(f"{path} holds no requests, at least one is needed, {allowed()}")
    return rows, lines


def _json_rows(text: str, path: Path) -> tuple[list[Row], list[int]]:
    rows, lines = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number}: '{line[:40]}' is no JSON object, one is needed a line"
            )
        rows.append(row)
        lines.append(number)
    return rows, lines


def _csv_rows(text: str, path: Path) -> tuple[list[Row], list[int]]:
    rows: list[Row] = []
    lines: list[int] = []
    header: list[str] = []
    for line, cells in _csv_cells(text, path):
        if not header:
            header = [cell.strip() for cell in cells]
            recognise(dict.fromkeys(header), f"{path}:{line}")
        elif len(cells) != len(header):
            raise UserError(
                f"{path}:{line}: a row of {len(cells)} cells, "
                f"the header names {len(header)} columns"
            )
        else:
            rows.append(dict(zip(header, cells, strict=True)))
            lines.append(line)
    return rows, lines


def _csv_cells(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text.split("\n"))
    try:
        for cells in reader:
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: no CSV ({error}), {allowed()}") from None


def seconds(raw: list[Any], unit_ns: int | None) -> FloatArray:
    """Turn a time column into seconds, to the nanosecond; what is no time becomes NaN.

    Dates, and times beyond 90 days (Unix times), are counted from the earliest one.
    """
    times, unit = _dates(raw) if unit_ns is None else (_numbers(raw), unit_ns)
    finite = np.isfinite(times)
    limit = rules.MAX_ARRIVAL_S * NS_PER_S / unit
    if finite.any() and (unit_ns is None or times[finite].min() > limit):
        times = times - times[finite].min()
    result = np.where(finite, times.astype(np.float64), np.nan) * (unit / NS_PER_S)
    exact = finite & (np.abs(result) <= rules.MAX_ARRIVAL_S)
    result[exact] = rules.to_ns(times[exact], unit) / NS_PER_S
    return result


def _numbers(raw: list[Any]) -> FloatArray:
    cells = [None if isinstance(cell, bool) else cell for cell in raw]
    numbers = pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce")
    # Unix times in ns need the integers: float64 would round them to 256 ns.
    return numbers.to_numpy() if numbers.dtype == np.int64 else numbers.to_numpy(np.float64)


def _dates(raw: list[Any]) -> tuple[FloatArray, int]:
    stamps = pd.to_datetime(
        pd.Series(raw, dtype=object), format="ISO8601", utc=True, errors="coerce"
    )
    first, end = pd.Timestamp("1970", tz="UTC"), pd.Timestamp("2200", tz="UTC")
    stamps = stamps.where((stamps >= first) & (stamps < end))
    since_first = (stamps - stamps.min()) / pd.Timedelta(1, "ns")
    return np.asarray(since_first, dtype=np.float64), 1
