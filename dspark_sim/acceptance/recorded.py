"""Recorded acceptance: what a real drafter and verifier did at every output position."""

from __future__ import annotations

import json
import reprlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dspark_sim.acceptance.source import AcceptanceSource, Member
from dspark_sim.core import UserError, unknown_name, whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_COLUMNS = ("request_id", "position", "accepted", "confidence", "category")


@dataclass(frozen=True)
class RecordedAcceptance(AcceptanceSource):
    """Replay of a recording: one block's accepted length and confidences per output position.

    Parameters
    ----------
    frame
        One row per (request_id, position), positions 0, 1, … without gaps: accepted (0..γ),
        confidence (list of γ, or null for a drafter that has none), category.
    draft_len
        γ, the length of every recorded block.
    mapping
        Exact request-to-response mapping: request index of the run -> recorded request_id. Other
        requests are tied by their luck to a response of their category, and past its end go on
        with further ones.
    temperatures
        T_1..T_γ that the recorder fitted to the drafter's confidences, if it did.
    """

    name: str
    frame: pd.DataFrame = field(repr=False)
    draft_len: int
    mapping: Mapping[int, str] = field(default_factory=dict)
    origin: str = "given"
    temperatures: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check(self.frame, self.draft_len, self.name)
        recorded = set(self.frame["request_id"].astype(str))
        for request, response in self.mapping.items():
            if response not in recorded:
                raise UserError(
                    f"recording '{self.name}' has no response '{response}', to which request "
                    f"{request} is mapped"
                )

    @property
    def max_draft_len(self) -> int:
        """Length of the recorded blocks, in draft tokens."""
        return self.draft_len

    @property
    def has_confidence(self) -> bool:
        """Whether the drafter reported confidences."""
        return bool(self.frame["confidence"].notna().all())

    @property
    def categories(self) -> list[str]:
        """Categories in the recording, sorted."""
        return sorted(self.frame["category"].astype(str).unique())

    def assign(self, categories: Sequence[str]) -> NDArray[np.int32]:
        """Return each request's pool: its category's, or all responses where it has none."""
        known = {name: index + 1 for index, name in enumerate(self.categories)}
        pools = np.zeros(len(categories), dtype=np.int32)
        if len(known) > 1:
            for index, category in enumerate(categories):
                if category and category not in known:
                    raise unknown_name("category", category, known, f"recording '{self.name}'")
                pools[index] = known.get(category, 0)
        return pools

    def members(self) -> list[Member]:
        """Return one pool of all responses, then one per category."""
        groups = list(self.frame.groupby("request_id", sort=True))
        constant = None if self.has_confidence else self._constant_confidence()
        responses = [_response(rows, constant) for _, rows in groups]
        names = [str(identifier) for identifier, _ in groups]
        kinds = [str(rows["category"].iloc[0]) for _, rows in groups]
        pools = [list(range(len(groups)))]
        pools += [[i for i, kind in enumerate(kinds) if kind == name] for name in self.categories]
        return [self._pool(indices, responses, names) for indices in pools]

    def _pool(
        self,
        indices: list[int],
        responses: list[tuple[NDArray[np.int16], NDArray[np.float32]]],
        names: list[str],
    ) -> Member:
        local = {names[i]: k for k, i in enumerate(indices)}
        return Member(
            confidence=(np.ones(self.draft_len), np.zeros(self.draft_len), 0.0),
            responses=tuple(responses[i][0] for i in indices),
            response_confidence=tuple(responses[i][1] for i in indices),
            mapping={req: local[resp] for req, resp in self.mapping.items() if resp in local},
        )

    def _constant_confidence(self) -> NDArray[np.float32]:
        """Return the recording's mean conditional acceptance, for a drafter without confidence."""
        accepted = self.frame["accepted"].to_numpy()
        survived = np.array([(accepted >= j).sum() for j in range(self.draft_len + 1)], dtype=float)
        return (survived[1:] / np.maximum(survived[:-1], 1.0)).astype(np.float32)


def _response(
    rows: pd.DataFrame, constant: NDArray[np.float32] | None
) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    accepted = rows["accepted"].to_numpy(dtype=np.int16)
    if constant is None:
        return accepted, np.array(rows["confidence"].tolist(), dtype=np.float32)
    return accepted, np.tile(constant, (len(rows), 1))


def read_recording(path: str | Path, name: str | None = None) -> RecordedAcceptance:
    """Read a recording: Parquet with request_id, position, accepted, confidence, category."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: cannot be read as a Parquet recording ({error})") from None
    frame = table.to_pandas()
    if "category" not in frame:
        frame["category"] = ""
    if "confidence" not in frame:
        frame["confidence"] = None
    missing = [column for column in _COLUMNS if column not in frame]
    if missing:
        raise UserError(f"{path}: column '{missing[0]}' is missing; needed: {', '.join(_COLUMNS)}")
    if frame.empty:
        raise UserError(f"{path}: the recording is empty")
    metadata = recording_metadata(table.schema)
    lists = frame["confidence"].dropna()
    fallback = len(lists.iloc[0]) if len(lists) else frame["accepted"].max()
    draft_len = _whole(metadata.get("num_speculative_tokens", fallback), path)
    return RecordedAcceptance(
        name or Path(path).stem,
        frame,
        draft_len,
        origin=str(metadata.get("origin", path)),
        temperatures=_temperatures(metadata.get("sts_temperatures"), draft_len, path),
    )


def _whole(value: Any, path: str | Path) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(
            f"{path}: num_speculative_tokens must be a whole number, got {value!r}"
        ) from None


def _temperatures(values: Any, draft_len: int, path: str | Path) -> tuple[float, ...] | None:
    if values is None:
        return None
    numbers = isinstance(values, list) and all(
        type(value) in (int, float) and 0 < value <= sys.float_info.max for value in values
    )
    if not numbers or len(values) != draft_len:
        raise UserError(
            f"{path}: sts_temperatures must be a list of {draft_len} positive numbers, one per "
            f"draft position, got {reprlib.repr(values)}"
        )
    return tuple(map(float, values))


def write_recording(
    path: str | Path, frame: pd.DataFrame, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a recording whole or not at all; `metadata` is kept with it as JSON."""
    table = pa.Table.from_pandas(frame[list(_COLUMNS)], preserve_index=False)
    table = table.replace_schema_metadata({"dspark_sim": json.dumps(dict(metadata or {}))})
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def recording_origin(path: str | Path) -> str:
    """Return where a recording comes from, without reading its rows."""
    return str(recording_metadata(pq.read_schema(path)).get("origin", path))


def recording_metadata(schema: pa.Schema) -> dict[str, Any]:
    """Return what the recorder wrote about models, γ, temperatures and command."""
    raw = (schema.metadata or {}).get(b"dspark_sim", b"{}")
    try:
        return dict(json.loads(raw))
    except ValueError:
        raise UserError("the recording's metadata is no JSON object") from None


def _check(frame: pd.DataFrame, draft_len: int, name: str) -> None:
    if frame.empty:
        raise UserError(f"recording '{name}' is empty")
    for column in ("request_id", "position"):
        if frame[column].isna().any():
            row = int(frame[column].isna().to_numpy().argmax())
            raise UserError(f"recording '{name}': {column} is missing in row {row}")
    if not pd.api.types.is_numeric_dtype(frame["position"]):
        raise UserError(f"recording '{name}': position must be a whole number in every row")
    accepted = pd.to_numeric(frame["accepted"], errors="coerce")
    if accepted.isna().any() or (accepted % 1 != 0).any():
        raise UserError(f"recording '{name}': accepted must be a whole number in every row")
    if accepted.min() < 0 or accepted.max() > draft_len:
        raise UserError(
            f"recording '{name}': accepted must lie in 0..{draft_len}, "
            f"found {accepted.min()}..{accepted.max()}"
        )
    steps = frame.groupby("request_id", sort=False)["position"].diff().fillna(1)
    starts = frame.groupby("request_id", sort=False)["position"].first()
    if (steps != 1).any() or (starts != 0).any():
        bad = frame.loc[steps.ne(1), "request_id"]
        culprit = bad.iloc[0] if len(bad) else starts[starts != 0].index[0]
        raise UserError(
            f"recording '{name}': positions of request '{culprit}' must be 0, 1, 2, … without gaps"
        )
    confidence = frame["confidence"]
    if confidence.isna().any() and confidence.notna().any():
        raise UserError(f"recording '{name}': confidence must be given for all rows or for none")
    if confidence.notna().all():
        values = np.concatenate([np.ravel(row) for row in confidence])
        widths = confidence.map(lambda row: -1 if np.isscalar(row) else len(row))
        if (widths != draft_len).any() or not ((values >= 0) & (values <= 1)).all():
            raise UserError(
                f"recording '{name}': every confidence must be {draft_len} numbers in 0..1"
            )
