"""The table of speeds: as JSON, as Markdown, and compared with one that was kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write(rows: Sequence[Row], about: dict[str, str], path: Path) -> None:
    """Write machine, versions and rows as JSON."""
    content = {"machine": about, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Row]:
    """Return the rows of a table by key; none where there is no table."""
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**row) for row in content["rows"]]
    return {row.key: row for row in rows}


def markdown(rows: Sequence[Row], about: dict[str, str], kept: dict[str, Row]) -> str:
    """Return the table as Markdown; `gain` is above 1 where a number is better than before."""
    lines = [f"{key}: {value}  " for key, value in about.items()]
    lines += [
        "",
        "| group | what | value | unit | baseline | gain |",
        "|---|---|---:|---|---:|---:|",
    ]
    for row in rows:
        before = kept.get(row.key)
        old = "" if before is None else f"{before.value:.4g}"
        ratio = "" if before is None else f"{_gain(row, before):.2f}"
        lines.append(
            f"| {row.group} | {row.what} | {row.value:.4g} | {row.unit} | {old} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def _gain(row: Row, before: Row) -> float:
    return row.value / before.value if row.more else before.value / row.value
