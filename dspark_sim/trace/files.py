"""Reading a trace in any recognised format, and writing it in the project's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.core import NS_PER_MS, UserError, whole_file
from dspark_sim.trace import formats, rules
from dspark_sim.trace.trace import Trace

if TYPE_CHECKING:
    from dspark_sim.trace.formats import Layout, Row


def read_trace(path: str | Path) -> Trace:
    """Read a request trace; its content, not its name, says which format it is in.

    Recognised are the layouts in `formats.LAYOUTS`. A row that breaks a rule (no number, negative
    or falling time, a length below 1, a repeated identifier) raises UserError with file and line;
    nothing is dropped or reordered. Times are as in the file; dates, and times beyond 90 days (Unix
    times), are counted from the first arrival.
    """
    path = Path(path)
    rows, lines = formats.read_rows(path)
    layout = formats.recognise(rows[0], f"{path}:{lines[0]}")
    frame = _frame(rows, layout)
    fault = rules.first_fault(rules.with_defaults(frame))
    if fault is not None:
        key = layout.keys[fault.column]
        value = rows[fault.row].get(key)
        got = "nothing" if value is None or value == "" else str(value)[:40]
        raise UserError(f"{path}:{lines[fault.row]}: {key} {fault.rule}, got {got}")
    return Trace(frame, name=path.stem, origin=f"{path.name} ({layout.name})")


def _frame(rows: list[Row], layout: Layout) -> pd.DataFrame:
    columns: dict[str, Any] = {
        column: pd.Series([row.get(key) for row in rows], dtype=object)
        for column, key in layout.keys.items()
    }
    columns["arrival_s"] = formats.seconds(columns["arrival_s"].tolist(), layout.unit_ns)
    return pd.DataFrame(columns)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as JSONL: Mooncake's keys, category and request_id.

    `timestamp` is in ms with as many digits as its nanoseconds need, so reading the file returns
    the same requests. A category is written where there is one, an identifier where it is not the
    row's number (counted from 0), which is what the reader assumes.
    """
    frame = trace.requests
    columns = (
        frame["prompt_tokens"],
        frame["output_tokens"],
        frame["category"],
        frame["request_id"],
    )
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for row, (arrival_ns, *values) in enumerate(zip(trace.arrival_ns, *columns, strict=True)):
            prompt, output, category, request_id = values
            text = f'{{"timestamp": {_milliseconds(int(arrival_ns))}, '
            text += f'"input_length": {prompt}, "output_length": {output}'
            if category:
                text += f', "category": {json.dumps(category)}'
            if request_id != str(row):
                text += f', "request_id": {json.dumps(request_id)}'
            file.write(text + "}\n")


def _milliseconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, NS_PER_MS)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") if rest else str(whole)
