"""The published numbers that cases compare with: small tables, each with its source on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

PUBLISHED = Path(__file__).parent / "published"


def published(name: str) -> pd.DataFrame:
    """Read `published/NAME.csv`; lines that begin with # say where its numbers come from."""
    return pd.read_csv(PUBLISHED / f"{name}.csv", comment="#")


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as plain values by column."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def source(name: str) -> str:
    """Return what a table says of its source."""
    path = PUBLISHED / f"{name}.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
