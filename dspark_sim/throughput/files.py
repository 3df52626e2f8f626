"""A profile as a folder: profile.toml, verify.csv and, where they exist, the other tables."""

from __future__ import annotations

import csv
import json
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dspark_sim.core import UserError, parse_number, shipped_dir, unknown_name, whole_file
from dspark_sim.throughput.profile import EngineProfile
from dspark_sim.throughput.schema import (
    TABLES,
    Place,
    ProfileHeader,
    check_columns,
    check_header,
    check_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dspark_sim.throughput.schema import TableSpec

HEADER = "profile.toml"
_WRAP = 100


def load_profile(
    name_or_path: str | Path, overrides: Mapping[str, object] | None = None
) -> EngineProfile:
    """Read a shipped profile by its name, or any profile by its folder (`./NAME`, `a/b`).

    Parameters
    ----------
    name_or_path : str or Path
        A shipped name wins over a folder of the same name; write `./NAME` for the folder.
    overrides : mapping, optional
        Keys of profile.toml to replace (`kv_tokens`, `max_num_seqs`, `lookup`, ...), checked like
        the file's own and noted in the provenance.

    Raises
    ------
    UserError
        A sentence naming the file and the line or key.
    """
    folder = _find(name_or_path)
    keys = _read_toml(folder / HEADER)
    measured_limit = keys.get("capture_limit")
    if overrides:
        keys = _override(keys, overrides, f"the overrides of profile '{name_or_path}'")
    header = check_header(keys, str(folder / HEADER))
    tables: dict[str, Any] = {}
    for spec in TABLES:
        path = folder / f"{spec.name}.csv"
        if path.exists() or spec.name == "verify":
            tables[spec.name] = read_table(path, spec)
    if overrides and "capture_limit" in overrides and measured_limit is not None:
        limit = header["capture_limit"]
        tables["verify"] = _fewer_graphs(tables["verify"], measured_limit, limit, folder)
    return EngineProfile(**header, **tables)


def _override(keys: dict[str, Any], overrides: Mapping[str, object], where: str) -> dict[str, Any]:
    for key in overrides:
        if key not in ProfileHeader.model_fields:
            raise unknown_name("key", key, ProfileHeader.model_fields, where)
    keys = keys | dict(overrides)
    changed = ", ".join(f"{key} = {value}" for key, value in overrides.items())
    if isinstance(keys.get("provenance"), dict):
        keys["provenance"] = {**keys["provenance"], "overrides": changed}
    return keys


def _fewer_graphs(
    verify: pd.DataFrame, measured: int, limit: int | None, folder: Path
) -> pd.DataFrame:
    """Drop the captured points above a lowered limit: those sizes would have run eager."""
    if limit is None or limit > measured:
        raise UserError(
            f"{folder / HEADER}: capture_limit can only be lowered: "
            f"nothing above {measured} tokens was captured, got {limit}"
        )
    sizes = verify["batch_tokens"]
    return verify[(sizes <= limit) | (sizes > measured)]


def _find(name_or_path: str | Path) -> Path:
    folder = Path(name_or_path)
    shipped = {path.parent.name for path in _shipped()}
    if str(name_or_path) in shipped:
        return shipped_dir("profiles") / str(name_or_path)
    if folder.name == HEADER:
        folder = folder.parent
    if (folder / HEADER).is_file():
        return folder
    if folder.is_dir():
        raise UserError(f"{folder}: the file '{HEADER}' is missing")
    if len(folder.parts) > 1:
        raise UserError(f"there is no profile folder '{folder}'")
    raise unknown_name("profile", str(name_or_path), shipped)


def list_profiles() -> list[dict[str, str]]:
    """Name and origin of every shipped profile, sorted by name."""
    found = []
    for path in _shipped():
        keys = _read_toml(path)
        found.append({"name": path.parent.name, "origin": str(keys["provenance"]["source"])})
    return found


def _shipped() -> list[Path]:
    return sorted(shipped_dir("profiles").glob(f"*/{HEADER}"))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no valid TOML: {error}") from None


def read_table(path: Path, spec: TableSpec) -> pd.DataFrame:
    """Read one CSV table of a profile; every complaint names the file and the line."""
    if not path.is_file():
        raise UserError(f"{path.parent}: the file '{path.name}' is missing")
    place = Place(str(path), "line", 2)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no valid CSV: {error}") from None
    columns = lines[0] if lines else []
    check_columns(columns, spec, f"{path} line 1")
    rows = []
    for index, cells in enumerate(lines[1:]):
        if len(cells) != len(columns):
            raise UserError(
                f"{place.row(index)}: {len(columns)} values are needed, got {len(cells)}"
            )
        rows.append(
            [
                _read_cell(cell, column, spec, place.row(index))
                for cell, column in zip(cells, columns, strict=True)
            ]
        )
    return check_table(pd.DataFrame(rows, columns=columns, dtype="float64"), spec, place)


def _read_cell(cell: str, column: str, spec: TableSpec, where: str) -> float:
    if not cell.strip() and column in spec.optional:
        return float("nan")
    return parse_number(cell, f"{where}: {column}")


def write_profile(profile: EngineProfile, folder: str | Path) -> Path:
    """Write a profile as a folder that `load_profile` reads back unchanged. Whole or not at all."""
    with whole_file(folder) as aside:
        aside.mkdir()
        (aside / HEADER).write_text(_toml(profile.header()), encoding="utf-8")
        for spec in TABLES:
            table = getattr(profile, spec.name)
            if table is not None:
                table.to_csv(aside / f"{spec.name}.csv", index=False, lineterminator="\n")
    return Path(folder)


def _toml(header: Mapping[str, Any]) -> str:
    keys = {key: value for key, value in header.items() if key != "provenance"}
    keys["kv_tokens"] = "unlimited" if keys["kv_tokens"] is None else keys["kv_tokens"]
    lines = [f"{key} = {_toml_value(value)}" for key, value in keys.items() if value is not None]
    lines += ["", "[provenance]"]
    lines += [
        f"{key if key.isascii() and key.isidentifier() else _quoted(key)} = {_toml_value(text)}"
        for key, text in header["provenance"].items()
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: str | bool | float) -> str:
    """Write a TOML value; a long text goes over several lines that TOML joins again."""
    if not isinstance(value, str):
        return str(value).lower()
    quoted = _quoted(value)
    wrapped = textwrap.wrap(quoted[1:-1], _WRAP - 2, break_long_words=False, break_on_hyphens=False)
    if len(quoted) <= _WRAP or " ".join(wrapped) != quoted[1:-1]:
        return quoted
    return '"""\\\n' + " \\\n".join(wrapped) + '"""'
