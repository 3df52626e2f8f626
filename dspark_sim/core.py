"""What every room shares: errors, units, names, shipped files and whole-file writes."""

from __future__ import annotations

import difflib
import math
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class UserError(ValueError):
    """A mistake in the input, told in one sentence: what, where, what is allowed. Exit code 2."""


class RunError(RuntimeError):
    """A run that could not finish although its input was sound. Exit code 1."""


def unknown_name(what: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """Say that `name` is no known `what`, with the nearest match and the names that are allowed."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    place = f" in {where}" if where else ""
    return UserError(f"unknown {what} '{name}'{place}: {hint}allowed: {', '.join(names)}")


def parse_number(text: str, what: str) -> float:
    """Read one finite number or say what stood in its place."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{what} must be a number, got '{text}'") from None
    if not math.isfinite(value):
        raise UserError(f"{what} must be finite, got '{text}'")
    return value


def parse_spec(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Split `name:a,b,key=value` into its name, positional and keyword arguments.

    >>> parse_spec("fixed:3,gamma=7")
    ('fixed', ['3'], {'gamma': '7'})
    """
    name, _, rest = text.strip().partition(":")
    positional: list[str] = []
    keywords: dict[str, str] = {}
    for part in (piece.strip() for piece in rest.split(",") if piece.strip()):
        key, equals, value = part.partition("=")
        if not equals:
            if keywords:
                raise UserError(f"'{text}': '{part}' must come before the key=value arguments")
            positional.append(part)
        elif key in keywords:
            raise UserError(f"'{text}': '{key}' is given twice")
        else:
            keywords[key.strip()] = value.strip()
    return name, positional, keywords


def expand_range(text: str, what: str) -> list[float]:
    """Expand `1,2,4`, `a..b` (doubling), `a..b:step` or `a..b:xfactor` into numbers.

    >>> expand_range("1..8", "concurrency")
    [1.0, 2.0, 4.0, 8.0]
    >>> expand_range("0.1..0.5:0.2", "threshold")
    [0.1, 0.3, 0.5]
    """
    values: list[float] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        if ".." not in span:
            values.append(math.inf if part.strip() == "inf" else parse_number(part, what))
            continue
        low_text, _, high_text = span.partition("..")
        low, high = parse_number(low_text, what), parse_number(high_text, what)
        factor = not step or step.startswith("x")
        stride = parse_number(step.removeprefix("x"), what) if step else 2.0
        if high < low or stride <= (1 if factor else 0) or (factor and low <= 0):
            raise UserError(
                f"{what}: '{part}' is no rising range; "
                "allowed: low..high (doubling), low..high:step, low..high:xFACTOR"
            )
        value, index = low, 0
        while value <= high * (1 + 1e-12):
            values.append(value)
            index += 1
            value = round(low * stride**index if factor else low + stride * index, 12)
    return values


def shipped_dir(kind: str) -> Path:
    """Return the folder of shipped `profiles` or `traces`: in the wheel, or in the checkout."""
    package = Path(__file__).parent
    inside = package / kind
    return inside if inside.is_dir() else package.parent / kind


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path that becomes `path` when the block ends well, and vanishes if not.

    The suffix is kept, so that writers which look at it work. The temporary path lies in the same
    folder, which is created if need be. Writing a folder works too, and replaces an old one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    temporary = aside / target.name
    try:
        yield temporary
        if target.is_dir():
            target.rename(aside / "replaced")
        os.replace(temporary, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
