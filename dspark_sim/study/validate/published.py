"""The published numbers that cases compare with: small tables, each with its source on top."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def published(name: str) -> pd.DataFrame:
    """Read `published/NAME.csv`; lines that begin with # say where its numbers come from."""
    return pd.read_csv(Path(__file__).parent / "published" / f"{name}.csv", comment="#")


def source(name: str) -> str:
    """Return what a table says of its source."""
    path = Path(__file__).parent / "published" / f"{name}.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
