"""What a profile's files may hold: the keys of profile.toml and the columns of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dspark_sim.core import UserError, unknown_name
from dspark_sim.throughput.lookup import Rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

DraftRule = Literal["captured", "linear"]
Drafter = Literal["block", "autoregressive", "none"]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0)]
Cost = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]  # ms; no step takes hours


def _limitless(value: object) -> object:
    return None if value == "unlimited" else value


class ProfileHeader(BaseModel):
    """The keys of profile.toml; times in milliseconds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Text
    engine: Text
    model: Text
    gpu: Text
    num_gpus: Count
    dtype: Text = "not stated"
    max_num_seqs: Count
    max_num_batched_tokens: Count
    kv_tokens: Annotated[Count | None, BeforeValidator(_limitless)]
    block_size: Count = 16
    capture_limit: Count | None = None
    lookup: Rule
    draft_lookup: DraftRule = "captured"
    overhead_ms: Cost = 0.0
    context_ms_per_kv_token: Cost = 0.0
    draft_context_ms_per_kv_token: Cost = 0.0
    drafter: Drafter
    draft_in_verify: bool = False
    provenance: dict[str, Text]


def check_header(keys: Mapping[str, object], where: str) -> dict[str, Any]:
    """Return the keys of a profile.toml, defaults filled in, or say which key is wrong."""
    try:
        header = ProfileHeader.model_validate(dict(keys))
    except ValidationError as error:
        raise _key_error(error, where) from None
    if not header.provenance.get("source"):
        raise UserError(f"{where}: [provenance] needs a 'source' (where the numbers come from)")
    if header.drafter == "none" and header.draft_in_verify:
        raise UserError(f"{where}: draft_in_verify = true needs a drafter, but drafter is 'none'")
    return header.model_dump()


def _key_error(error: ValidationError, where: str) -> UserError:
    # A misspelt key is also a missing one; the misspelling is what helps.
    faults = error.errors(include_url=False)
    first = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_name("key", key, ProfileHeader.model_fields, where)
    if first["type"] == "missing":
        return UserError(f"{where}: the key '{key}' is missing")
    if first["type"] == "literal_error":
        choices = {"lookup": Rule, "draft_lookup": DraftRule, "drafter": Drafter}
        return unknown_name(key, str(first["input"]), get_args(choices[key]), where)
    demand = first["msg"].removeprefix("Input should be ").replace("Input", "it")
    hint = " or 'unlimited'" if key == "kv_tokens" else ""
    return UserError(f"{where}: {key} must be {demand}{hint}, got {first['input']!r}")


@dataclass(frozen=True)
class TableSpec:
    """The columns of one table: `sizes` strictly increasing within equal `groups`, `ms` a cost.

    Rows of the same size may differ in the columns `ties`, and rise by them. Columns that are
    `sparse` are not filled in where a table lacks them.
    """

    name: str
    sizes: str
    groups: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    free: bool = True
    ties: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that a file must have."""
        return (self.sizes, *self.groups, "ms")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in the order in which they are written."""
        extras = [name for name in self.optional if name not in _AFTER_MS]
        after = [name for name in _AFTER_MS if name in self.optional]
        return (self.sizes, *self.groups, *extras, "ms", *after)


_SPREAD = ("p10_ms", "p90_ms", "n")
_AFTER_MS = (*_SPREAD, "roofline_ms")
VERIFY = TableSpec(
    "verify",
    "batch_tokens",
    whole=("batch_tokens", "num_requests", "kv_tokens_read", "n"),
    optional=("num_requests", "kv_tokens_read", *_SPREAD, "roofline_ms"),
    free=False,
    ties=("num_requests", "kv_tokens_read"),
    sparse=("num_requests", "roofline_ms"),
)
DRAFT = TableSpec(
    "draft",
    "num_requests",
    groups=("draft_len",),
    whole=("num_requests", "draft_len", "n"),
    optional=_SPREAD,
)
REQUESTS = TableSpec("requests", "num_requests", whole=("num_requests",))
PREFILL = TableSpec("prefill", "tokens", whole=("tokens",), free=False)
TABLES = (VERIFY, DRAFT, REQUESTS, PREFILL)


@dataclass(frozen=True)
class Place:
    """Where a table stands, so that a message can name its row."""

    where: str
    row_word: str = "row"
    first_row: int = 1

    def row(self, index: int) -> str:
        """Name the row with this index."""
        return f"{self.where} {self.row_word} {index + self.first_row}"


def check_columns(columns: Sequence[str], spec: TableSpec, where: str) -> None:
    """Raise for a column that is unknown, missing or there twice."""
    for column in columns:
        if column not in spec.columns:
            raise unknown_name("column", str(column), spec.columns, where)
    for column in spec.required:
        if column not in columns:
            raise UserError(f"{where}: the column '{column}' is missing")
    if len(set(columns)) < len(columns):
        raise UserError(f"{where}: a column is there twice: {', '.join(columns)}")


def check_table(frame: pd.DataFrame, spec: TableSpec, place: Place) -> pd.DataFrame:
    """Return the table with all its columns and right types, or say which row is wrong.

    Spreads that are not given are NaN, a count n that is not given is 0.
    """
    check_columns(list(frame.columns), spec, place.where)
    if frame.empty:
        raise UserError(f"{place.where}: the table is empty; it needs at least one measured row")
    columns = [name for name in spec.columns if name in frame or name not in spec.sparse]
    table = {name: _numbers(frame, name, spec) for name in columns}
    _check_values(table, spec, place)
    _check_order(table, spec, place)
    types = {name: np.int64 if name in spec.whole else np.float64 for name in columns}
    return pd.DataFrame({name: values.astype(types[name]) for name, values in table.items()})


def _numbers(frame: pd.DataFrame, name: str, spec: TableSpec) -> FloatArray:
    """Return a column as floats (rows,); of what is not given, a count is 0, all else NaN."""
    blank = 0.0 if name in spec.optional and name in spec.whole else np.nan
    if name not in frame:
        return np.full(len(frame), blank)
    values = frame[name].to_numpy(np.float64)
    return np.where(np.isnan(values), blank, values)


def _check_values(table: Mapping[str, FloatArray], spec: TableSpec, place: Place) -> None:
    for column, values in table.items():
        if column in ("p10_ms", "p90_ms"):
            continue
        whole, least = column in spec.whole, int(column in (spec.sizes, *spec.groups))
        positive = (column == "ms" and not spec.free) or column == "roofline_ms"
        good = np.isfinite(values) & (values > 0 if positive else values >= least)
        good |= np.isnan(values) & (column == "roofline_ms")
        good &= (values == np.floor(values)) | (not whole)
        if not good.all():
            row = int(np.argmin(good))
            kind = "a whole number" if whole else "a finite number"
            rule = "above 0" if positive else f"of at least {least}"
            raise UserError(
                f"{place.row(row)}: {column} must be {kind} {rule}, got {values[row]:g}"
            )
    if {"num_requests", "batch_tokens"} <= set(table):
        bad = table["num_requests"] > table["batch_tokens"]
        if bad.any():
            raise UserError(
                f"{place.row(int(np.argmax(bad)))}: num_requests must not be more than batch_tokens"
            )
    if "p10_ms" in table:
        bad = (table["p10_ms"] > table["ms"]) | (table["p90_ms"] < table["ms"])
        if bad.any():
            row = int(np.argmax(bad))
            raise UserError(f"{place.row(row)}: ms must lie between p10_ms and p90_ms")


def _check_order(table: Mapping[str, FloatArray], spec: TableSpec, place: Place) -> None:
    """Check that rows rise by size and, among equal sizes, by what tells them apart."""
    keys = [spec.sizes, *(name for name in spec.ties if name in table)]
    rows = np.column_stack([table[key] for key in keys])
    groups = np.column_stack([np.zeros(len(rows)), *(table[name] for name in spec.groups)])
    for group in dict.fromkeys(map(tuple, groups.tolist())):
        places = np.flatnonzero((groups == group).all(axis=1))
        steps = np.diff(rows[places], axis=0)
        fallen = np.argmax(steps != 0, axis=1)
        bad = np.flatnonzero(steps[np.arange(len(steps)), fallen] <= 0)
        if len(bad):
            before, row = (int(places[bad[0] + step]) for step in (0, 1))
            key = fallen[bad[0]]
            value, last = rows[row, key], rows[before, key]
            fault = "is given twice" if value == last else f"comes after {last:.0f}"
            raise UserError(
                f"{place.row(row)}: {keys[key]} {value:.0f} {fault}; rows must rise by it"
            )
