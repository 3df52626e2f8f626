"""A parametric acceptance law as a TOML file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark_sim.acceptance.law import ParametricAcceptance
from dspark_sim.core import UserError, unknown_name, whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping

Number = Annotated[float, Field(allow_inf_nan=False)]


class _LawFile(BaseModel):
    """The keys of a law's file; what they mean stands at `ParametricAcceptance`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1)]
    origin: str = "given"
    rates: list[Number] = []
    lengths: list[Number] = []
    request_sd: Number = 1.0
    token_sd: Number = 1.0
    confidence_scale: Number = 1.0
    confidence_bias: Number = 0.0
    confidence_noise: Number = 0.0
    notes: dict[str, str] = {}


def read_law(path: str | Path) -> ParametricAcceptance:
    """Read a law: `name`, then `rates` (conditional, per position) or `lengths` (k = 1, 2, …).

    Further keys are those of `ParametricAcceptance`; a table `notes` holds text for readers.

    Raises
    ------
    UserError
        A sentence naming the file and the key.
    """
    try:
        keys = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no valid TOML: {error}") from None
    try:
        values = _LawFile.model_validate(keys).model_dump(exclude={"notes"})
    except ValidationError as error:
        raise _fault(error, path) from None
    law: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return ParametricAcceptance(**law)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def write_law(
    law: ParametricAcceptance, path: str | Path, notes: Mapping[str, str] | None = None
) -> None:
    """Write a law as a file that `read_law` reads back, whole or not at all."""
    values = {key: getattr(law, key) for key in _LawFile.model_fields if key != "notes"}
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value != ()]
    if notes:
        lines += ["", "[notes]", *(f"{key} = {_toml(text)}" for key, text in notes.items())]
    with whole_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(float(value))


def _fault(error: ValidationError, path: str | Path) -> UserError:
    faults = error.errors(include_url=False)
    first = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_name("key", key, _LawFile.model_fields, str(path))
    if first["type"] == "missing":
        return UserError(f"{path}: the key '{key}' is missing")
    demand = first["msg"].removeprefix("Input should be ")
    return UserError(f"{path}: {key} must be {demand}, got {first['input']!r}")
