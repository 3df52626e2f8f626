"""Drafters side by side: their recordings (or laws) replayed, as tables and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.acceptance import (
    AcceptanceSource,
    acceptance_lengths,
    conditional_acceptance,
    draw_responses,
    load_acceptance,
    recording_about,
    sweep_thresholds,
)
from dspark_sim.acceptance.responses import ALL, SWEEP_COLUMNS
from dspark_sim.core import UserError, whole_file
from dspark_sim.study.drafter_style import drafter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TABLES = ("acceptance_length", "conditional", "thresholds")
_NOTES = (
    "accept len: tokens per round, bonus included, whole blocks verified, ± standard error",
    "1, 2, …: of the rounds that accepted all draft positions before, how many accepted this one",
)


@dataclass(frozen=True)
class Comparison:
    """Tables of several recordings, each with the column `recording` first.

    Attributes
    ----------
    recordings
        One row each: recording, drafter, target, temperature (NaN where unknown), origin.
    acceptance_length, conditional, thresholds
        By category and for all responses, as `acceptance.acceptance_lengths`,
        `conditional_acceptance` and `sweep_thresholds` return them. A recording without
        confidences has no rows in `thresholds`.
    """

    recordings: pd.DataFrame
    acceptance_length: pd.DataFrame
    conditional: pd.DataFrame
    thresholds: pd.DataFrame

    @property
    def categories(self) -> list[str]:
        """Categories of any recording, sorted, then that of all responses."""
        return list(dict.fromkeys(_by_category(self.acceptance_length)["category"]))

    @property
    def without_confidence(self) -> list[str]:
        """Recordings that have no threshold sweep."""
        names = self.recordings["recording"]
        return names[~names.isin(self.thresholds["recording"])].tolist()

    def save(self, folder: str | Path) -> list[Path]:
        """Write acceptance_length.csv, conditional.csv and thresholds.csv, each whole or not."""
        paths = [Path(folder) / f"{name}.csv" for name in TABLES]
        for path in paths:
            with whole_file(path) as temporary:
                getattr(self, path.stem).to_csv(temporary, index=False)
        return paths


def compare_drafters(
    names: Sequence[str | AcceptanceSource],
    num_speculative_tokens: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Replay recordings one request at a time and return what they say about their drafters.

    Recordings may differ in γ, categories, target and temperature. A law is drawn from: 400
    requests of 64 positions.

    Parameters
    ----------
    names
        Shipped names, Parquet files, whatever else `load_acceptance` takes, or sources.
    num_speculative_tokens
        Cuts every block to this length; by default each is as long as it was recorded, and 7 for
        synthetic laws.
    seed
        Of the draws from laws.

    Raises
    ------
    UserError
        Nothing to compare, an unknown or repeated name, a draft longer than a source knows, or a
        recording without a round.
    """
    if num_speculative_tokens is not None and num_speculative_tokens < 1:
        raise UserError(
            f"num_speculative_tokens must be 1 or more to compare, got {num_speculative_tokens}"
        )
    tables: dict[str, list[pd.DataFrame]] = {table: [] for table in TABLES}
    rows = []
    for name, (source, about) in _sources(names, num_speculative_tokens or 7).items():
        rows.append({"recording": name, **about, "origin": source.origin})
        responses = draw_responses(source, num_speculative_tokens, seed)
        lengths = acceptance_lengths(responses)
        if not lengths["rounds"].any():
            raise UserError(
                f"recording '{name}' has no output position after the first, where rounds begin"
            )
        tables["acceptance_length"].append(_named(name, lengths))
        tables["conditional"].append(_named(name, conditional_acceptance(responses)))
        if responses.has_confidence:
            tables["thresholds"].append(_named(name, sweep_thresholds(responses)))
    nothing = pd.DataFrame(columns=["recording", *SWEEP_COLUMNS])
    return Comparison(
        pd.DataFrame(rows),
        **{key: pd.concat(t, ignore_index=True) if t else nothing for key, t in tables.items()},
    )


def _sources(
    names: Sequence[str | AcceptanceSource], gamma: int
) -> dict[str, tuple[AcceptanceSource, dict[str, Any]]]:
    """Return each source by the name it is shown under, with what is known of its drafter."""
    found: dict[str, tuple[AcceptanceSource, dict[str, Any]]] = {}
    for index, given in enumerate(names):
        if isinstance(given, str):
            source, about = load_acceptance(given, gamma), recording_about(given)
            shown = given if source.name in found else source.name
        else:
            source, about, shown = given, {}, given.name
        if shown in found or given in names[:index]:
            raise UserError(f"recording '{shown}' is named twice: a comparison takes each once")
        found[shown] = (source, _describe(source.name, about))
    if not found:
        raise UserError("no recording is named: a comparison needs one at least")
    return found


def _describe(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    temperature = about.get("temperature")
    return {
        "drafter": str(about.get("drafter", drafter_of(name))),
        "target": str(about.get("target", "")),
        "temperature": float(temperature) if isinstance(temperature, int | float) else math.nan,
    }


def _named(name: str, table: pd.DataFrame) -> pd.DataFrame:
    table.insert(0, "recording", name)
    return table


def _by_category(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows sorted by category, those of all responses last; the rest of the order stays."""
    whole = table["category"] == ALL
    return pd.concat([table[~whole].sort_values("category", kind="stable"), table[whole]])


def format_drafters(comparison: Comparison) -> str:
    """Return the comparison as text: one line per category and recording.

    Acceptance length with its standard error, then conditional acceptance per draft position.
    """
    index = ["category", "recording", "position"]
    shares = comparison.conditional.set_index(index)["conditional"].unstack()
    lines = [["category", "recording", "responses", "rounds", "accept len", *map(str, shares)]]
    for row in _by_category(comparison.acceptance_length).to_dict("records"):
        names = [row["category"], row["recording"]]
        counts = [f"{row['responses']:,}", f"{row['rounds']:,}"]
        length = f"{_number(row['acceptance_length'])} ± {_number(row['standard_error'])}"
        lines.append([*names, *counts, length, *map(_number, shares.loc[tuple(names)])])
    return "\n".join([*_align(lines), "", *_NOTES])


def _align(lines: list[list[str]]) -> list[str]:
    """Pad the cells, names to the left and numbers to the right; name each category once."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text: list[str] = []
    for number, line in enumerate(lines):
        fresh = line[0] != lines[number - 1][0]
        cells = [line[0] if fresh else "", *line[1:]]
        padded = [
            f"{cell:<{width}}" if column < 2 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        text += [""] * (fresh and number > 1) + ["  ".join(padded).rstrip()]
    return text


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
