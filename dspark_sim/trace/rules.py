"""The rules every trace obeys, and the one table layout that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from dspark_sim.core import NS_PER_S, UserError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

COLUMNS = ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "category")
NUMBERS = ("arrival_s", "prompt_tokens", "output_tokens")
MAX_ARRIVAL_S = 90 * 86_400.0  # float64 seconds and milliseconds name every nanosecond below this
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Fault:
    """The first row (counted from 0) that breaks a rule, in which column, and the rule."""

    row: int
    column: str
    rule: str


def to_ns(times: IntArray | FloatArray, unit_ns: int) -> IntArray:
    """Turn finite times, in units of `unit_ns` nanoseconds, into the nearest whole nanoseconds.

    Whole and fractional part go separately: one product would lose nanoseconds after 26 days.
    """
    whole = np.floor(times)
    fraction = np.rint((times - whole) * unit_ns).astype(np.int64)
    nanoseconds: IntArray = whole.astype(np.int64) * unit_ns + fraction
    return nanoseconds


def canonical(requests: pd.DataFrame, where: str) -> pd.DataFrame:
    """Copy `requests` into the columns and types of a trace, or say in one sentence why not."""
    for column in requests.columns:
        if column not in COLUMNS:
            raise unknown_name("column", str(column), COLUMNS, where)
    for column in NUMBERS:
        if column not in requests.columns:
            raise UserError(f"{where} lacks the column '{column}', needed: {', '.join(NUMBERS)}")
    if requests.empty:
        raise UserError(f"{where} holds no requests, at least one is needed")
    frame = with_defaults(requests)
    fault = first_fault(frame)
    if fault is not None:
        value = requests[fault.column].iloc[fault.row]
        raise UserError(f"{where}, row {fault.row}: {fault.column} {fault.rule}, got {value}")
    frame["arrival_s"] = to_ns(frame["arrival_s"].to_numpy(), NS_PER_S) / NS_PER_S
    tokens = {"prompt_tokens": np.int64, "output_tokens": np.int64}
    return frame.astype(tokens)


def with_defaults(requests: pd.DataFrame) -> pd.DataFrame:
    """Order the columns, number the requests and leave the category empty where neither is given.

    What is no number becomes NaN, for `first_fault` to find.
    """
    frame = pd.DataFrame(index=pd.RangeIndex(len(requests)))
    numbers, nothing = frame.index.to_series(), pd.Series("", index=frame.index)
    frame["request_id"] = _text(requests.get("request_id"), numbers)
    for name in NUMBERS:
        values = pd.Series(requests[name].to_numpy())
        frame[name] = pd.to_numeric(values, errors="coerce").astype(np.float64)
    frame["category"] = _text(requests.get("category"), nothing)
    return frame


def _text(
    column: pd.Series[str] | None, default: pd.Series[int] | pd.Series[str]
) -> pd.Series[str]:
    """Return a column as text, the default where it holds nothing."""
    if column is None:
        return default.astype(str)
    given = column.reset_index(drop=True)
    if isinstance(given.dtype, pd.StringDtype) and not given.isna().any():
        return given.astype(str)
    return given.astype(object).where(given.notna(), default).astype(str)


def first_fault(frame: pd.DataFrame) -> Fault | None:
    """Find the earliest row that breaks a rule of traces, or None."""
    faults = [
        Fault(int(broken.argmax()), column, rule)
        for column, broken, rule in _checks(frame)
        if broken.any()
    ]
    return min(faults, key=lambda fault: fault.row, default=None)


def _checks(frame: pd.DataFrame) -> Iterator[tuple[str, npt.NDArray[np.bool_], str]]:
    time = frame["arrival_s"].to_numpy()
    with np.errstate(invalid="ignore"):
        falling = np.diff(time, prepend=time[:1]) < 0
    yield "arrival_s", ~np.isfinite(time), "must be a finite number"
    yield "arrival_s", time < 0, "must not be negative"
    yield "arrival_s", falling, "must not be earlier than the arrival before it"
    yield "arrival_s", time > MAX_ARRIVAL_S, "must lie within 90 days of the trace's zero"
    for column in ("prompt_tokens", "output_tokens"):
        tokens = frame[column].to_numpy()
        yield column, ~np.isfinite(tokens), "must be a whole number"
        yield column, tokens != np.rint(tokens), "must be a whole number"
        yield column, tokens < 1, "must be at least 1"
        yield column, tokens > MAX_TOKENS, f"must be at most {MAX_TOKENS}"
    yield "request_id", frame["request_id"].duplicated().to_numpy(), "must be unique"
