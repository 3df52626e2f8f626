"""What a simulation returns: requests, steps and a summary, and their folder on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dspark_sim.core import UserError, whole_file

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


ROW_GROUP = 131_072
FILES = ("config.json", "summary.json", "requests.parquet", "steps.parquet")


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of one simulation.

    Attributes
    ----------
    config : dict
        The resolved scenario, versions and hashes of the inputs.
    summary : dict
        Metrics of the measured window and of the whole run (`simulator/metrics.py`).
    requests : DataFrame
        One row per request: times in s, latencies in ms, tokens drafted, verified and accepted;
        empty if only the summary is recorded.
    steps : DataFrame
        One row per step, empty unless steps are recorded; of a very long run every second, fourth,
        ... step (`record_every` in `config`).
    gaps : (n, 2)
        Times between chunks of output in ns, with the number of chunks each stands for.
    """

    config: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame
    gaps: NDArray[np.int64]

    def save(self, folder: str | Path) -> None:
        """Write config.json, summary.json and the tables that have rows, all or nothing."""
        check_result_folder(folder)
        with whole_file(folder) as aside:
            aside.mkdir()
            (aside / "config.json").write_text(to_json(self.config), encoding="utf-8")
            (aside / "summary.json").write_text(to_json(self.summary), encoding="utf-8")
            for name, table in (("requests", self.requests), ("steps", self.steps)):
                if len(table):
                    _write_table(table, aside / f"{name}.parquet")


def _write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table one row group after the other: a long one is never there twice."""
    schema = pa.Schema.from_pandas(table, preserve_index=False)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(table), ROW_GROUP):
            rows = table.iloc[start : start + ROW_GROUP]
            writer.write_table(pa.Table.from_pandas(rows, schema, preserve_index=False))


def check_result_folder(folder: str | Path) -> None:
    """Refuse a place for a result that is a file, or a folder that holds anything else."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise UserError(f"{folder}: is a file, a folder is needed for the result")
    others = sorted({path.name for path in place.glob("*")} - set(FILES))
    if others:
        raise UserError(f"{folder}: holds '{others[0]}', which the result would replace")


def to_json(values: dict[str, Any]) -> str:
    """Return strict JSON; numbers that do not exist (NaN, infinity) become null."""
    return json.dumps(_plain(values), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
