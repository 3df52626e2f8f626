"""Reading the tables of other programs: text, JSON and CSV, with a place for every complaint."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import UserError, parse_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Sizes = NDArray[np.int64]


def read_text(path: str | Path) -> str:
    """Return the text of a file, or say why it has none."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is no text file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if "\0" in text:
        raise UserError(f"{path}: is no text file")
    return text


def line_at(text: str, position: int) -> int:
    """Return the number of the line at a position of a text, from 1."""
    return text.count("\n", 0, max(position, 0)) + 1


@dataclass(frozen=True)
class JsonObject:
    """One object of a JSON file, which names file, line and key when a value is wrong.

    Parameters
    ----------
    path : str
        Name of the file in messages.
    text : str
        The whole file.
    values : mapping
        The object's members.
    prefix, start
        Keys that lead to the object, and where it begins in the text.
    """

    path: str
    text: str = field(repr=False)
    values: Mapping[str, Any]
    prefix: str = ""
    start: int = 0

    @classmethod
    def parse(cls, path: str, text: str) -> JsonObject:
        """Read a file that holds one JSON object."""
        try:
            values = json.loads(text, object_pairs_hook=_no_key_twice)
        except json.JSONDecodeError as error:
            raise UserError(f"{path} line {error.lineno}: no valid JSON ({error.msg})") from None
        except _KeyTwiceError as error:
            line = line_at(text, text.rfind(f'"{error}"'))
            raise UserError(f"{path} line {line}: the key '{error}' is given twice") from None
        if not isinstance(values, dict):
            raise UserError(f"{path} line 1: a JSON object is needed, got {_kind(values)}")
        return cls(path, text, values)

    def where(self, key: str) -> str:
        """Name the file, the line and the key."""
        line = line_at(self.text, self._position(key))
        return f"{self.path} line {line}: {self.prefix}{key}"

    def _position(self, key: str) -> int:
        return max(self.text.find(f'"{key}"', self.start), self.start)

    def required(self, key: str) -> Any:
        """Return a member that has to be there."""
        if key not in self.values:
            place = f"{self.path} line {line_at(self.text, self.start)}"
            raise UserError(f"{place}: the key '{self.prefix}{key}' is missing")
        return self.values[key]

    def child(self, key: str) -> JsonObject:
        """Return a member that is an object itself."""
        value = self.required(key)
        if not isinstance(value, dict):
            raise UserError(f"{self.where(key)} must be an object, got {_kind(value)}")
        return JsonObject(self.path, self.text, value, f"{self.prefix}{key}.", self._position(key))

    def number(self, key: str, default: float | None = None, least: float | None = 0.0) -> float:
        """Return a finite number of at least `least`; `default` where the key is absent."""
        if default is not None and key not in self.values:
            return default
        return self._number(self.required(key), key, least)

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of at least `least`; `default` where the key is absent."""
        value = self.number(key, default, least)
        if value != int(value):
            raise UserError(f"{self.where(key)} must be a whole number, got {value:g}")
        return int(value)

    def numbers(self, key: str, least: float | None = 0.0, above: bool = False) -> Floats:
        """Return a list of finite numbers, each at least (or above) `least`."""
        values = self.required(key)
        if not isinstance(values, list):
            raise UserError(f"{self.where(key)} must be a list, got {_kind(values)}")
        if not values:
            raise UserError(f"{self.where(key)} must not be empty")
        named = ((f"{key}[{index}]", value) for index, value in enumerate(values))
        return np.array([self._number(value, name, least, above) for name, value in named])

    def _number(self, value: Any, name: str, least: float | None, above: bool = False) -> float:
        key = name.partition("[")[0]
        place = self.where(key) + name.removeprefix(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{place} must be a number, got {json.dumps(value)[:40]}")
        if not np.isfinite(float(value)):
            raise UserError(f"{place} must be finite, got {value}")
        if least is not None and (value < least or (above and value == least)):
            rule = f"above {least:g}" if above else f"at least {least:g}"
            raise UserError(f"{place} must be {rule}, got {value:g}")
        return float(value)

    def sizes(self, key: str) -> Sizes:
        """Return a list of whole numbers from 0 on that rise."""
        values = self.numbers(key)
        for index, value in enumerate(values):
            if value != int(value):
                raise UserError(f"{self.where(key)}[{index}] must be a whole number, got {value:g}")
            if index and value <= values[index - 1]:
                raise UserError(
                    f"{self.where(key)}[{index}] must be more than the entry before it, "
                    f"got {value:g} after {values[index - 1]:g}"
                )
        return values.astype(np.int64)

    def costs(
        self, key: str, sizes: str, least: float | None = 0.0, above: bool = False
    ) -> tuple[Sizes, Floats]:
        """Return the sizes under one key and, from another, as many costs."""
        at, costs = self.sizes(sizes), self.numbers(key, least, above)
        if len(at) != len(costs):
            raise UserError(
                f"{self.where(key)} must have as many entries as {sizes}, "
                f"got {len(costs)} for {len(at)}"
            )
        return at, costs


class _KeyTwiceError(ValueError):
    """A JSON object with the same key twice."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise _KeyTwiceError(key)
        values[key] = value
    return values


def _kind(value: object) -> str:
    kinds = {list: "a list", dict: "an object", str: "a text", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")


@dataclass(frozen=True)
class CsvRow:
    """One row of a CSV file: its cells by column, and its place."""

    where: str
    cells: Mapping[str, str]

    def number(self, column: str, least: float = 0.0, above: bool = False) -> float:
        """Return a finite number of at least (or above) `least`."""
        value = parse_number(self.cells[column], f"{self.where}: {column}")
        if value < least or (above and value == least):
            rule = f"above {least:g}" if above else f"at least {least:g}"
            raise UserError(f"{self.where}: {column} must be {rule}, got {value:g}")
        return value

    def whole(self, column: str, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self.number(column, least)
        if value != int(value):
            raise UserError(f"{self.where}: {column} must be a whole number, got {value:g}")
        return int(value)


def read_csv(path: str | Path, columns: Sequence[str], text: str | None = None) -> list[CsvRow]:
    """Read a CSV file that has these columns; others are left alone."""
    text = read_text(path) if text is None else text
    reader = csv.reader(text.splitlines())
    rows, header = [], None
    for cells in reader:
        where = f"{path} line {reader.line_num}"
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            for column in columns:
                if column not in header:
                    raise UserError(f"{where}: the column '{column}' is missing")
        elif len(cells) != len(header):
            raise UserError(f"{where}: {len(header)} values are needed, got {len(cells)}")
        else:
            rows.append(CsvRow(where, dict(zip(header, cells, strict=True))))
    if not rows:
        raise UserError(f"{path}: the table is empty; it needs at least one measured row")
    return rows
