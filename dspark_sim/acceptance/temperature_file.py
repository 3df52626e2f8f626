"""Temperatures in SGLang's STS file, a JSON object."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dspark_sim.acceptance.temperature import SequentialTemperatureScaling
from dspark_sim.core import UserError, unknown_name, whole_file

_LARGEST = sys.float_info.max


def write_temperatures(scaling: SequentialTemperatureScaling, path: str | Path) -> None:
    """Write temperatures as SGLang's STS file (JSON), whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(asdict(scaling), indent=2) + "\n", encoding="utf-8")


def read_temperatures(path: str | Path) -> SequentialTemperatureScaling:
    """Read SGLang's STS file: JSON with temperatures, dataset, num_samples, ece_before, ece_after.

    Only `temperatures` must be there.

    Raises
    ------
    UserError
        A sentence naming the file, the key, its value and what is allowed.
    """
    try:
        row = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path}: is no JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"{path}: must be a JSON object, got {_brief(row)}")
    known = [field.name for field in fields(SequentialTemperatureScaling)]
    for key in row:
        if key not in known:
            raise unknown_name("key", key, known, str(path))
    temperatures = _numbers(path, row, "temperatures", "a list of positive numbers")
    if not temperatures:
        raise UserError(f"{path}: temperatures must be a list of one positive number or more")
    shares = {}
    for key in ("ece_before", "ece_after"):
        shares[key] = _numbers(path, row, key, "a list of numbers in 0..1") if key in row else ()
        if len(shares[key]) not in (0, len(temperatures)):
            raise UserError(
                f"{path}: {key} has {len(shares[key])} numbers, "
                f"but there are {len(temperatures)} temperatures"
            )
    dataset, count = row.get("dataset", ""), row.get("num_samples", 0)
    if not isinstance(dataset, str):
        raise UserError(f"{path}: dataset must be text, got {_brief(dataset)}")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UserError(f"{path}: num_samples must be a whole number, got {_brief(count)}")
    return SequentialTemperatureScaling(temperatures, dataset, count, **shares)


def _numbers(path: str | Path, row: dict[str, Any], key: str, wanted: str) -> tuple[float, ...]:
    """Return a list of finite numbers; temperatures above 0, shares in 0..1."""
    if key not in row:
        raise UserError(f"{path}: key '{key}' is missing; needed: {wanted}")
    values = row[key]
    if not isinstance(values, list):
        raise UserError(f"{path}: {key} must be {wanted}, got {_brief(values)}")
    for index, value in enumerate(values):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        inside = number and (0 < value <= _LARGEST if key == "temperatures" else 0 <= value <= 1)
        if not inside:
            raise UserError(f"{path}: {key}[{index}] must be one of {wanted}, got {_brief(value)}")
    return tuple(map(float, values))


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
