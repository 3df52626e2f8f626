"""What every room shares: errors, units, names, shipped files and whole-file writes."""

from __future__ import annotations

import difflib
import math
import os
import shutil
import tempfile
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
OBJECTS_BEFORE_COLLECTING = 1_000_000
"""In a process of our own: libraries make objects by the hundred thousand, none of it garbage."""
_MOST_VALUES = 1000


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
        rising = _rising(low, high, stride, factor)
        if len(rising) > _MOST_VALUES or len(set(rising)) < len(rising):
            raise UserError(f"{what}: '{part}' gives more than {_MOST_VALUES:,} values")
        values += rising
    return values


def _rising(low: float, high: float, stride: float, factor: bool) -> list[float]:
    """Return the values from `low` to `high`, sums to 12 digits; one too many if there are many."""
    last = high + 1e-12 * abs(high)
    steps = range(_MOST_VALUES + 1)
    if factor:
        return list(takewhile(lambda x: x <= last, (low * stride**k for k in steps)))
    sums = (float(f"{low + stride * k:.12g}") if k else low for k in steps)
    return list(takewhile(lambda x: x <= last, sums))


def shipped_dir(kind: str) -> Path:
    """Return the folder of shipped `profiles` or `traces`: in the wheel, or in the checkout."""
    package = Path(__file__).parent
    inside = package / kind
    return inside if inside.is_dir() else package.parent / kind


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path that becomes `path` when the block ends well, and vanishes if not.

    The suffix is kept, so that writers which look at it work. The temporary path lies in the same
    folder, which is created if need be. A folder may be written too, and replaces an old one.

    Raises
    ------
    UserError
        The path cannot be written, or a file would take the place of a folder.
    """
    target = Path(path)
    if target.name in ("", "..") or target.resolve() == Path.cwd():
        raise UserError(f"'{path}': is no name of a file or folder to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror})") from None
    temporary = aside / target.name
    try:
        yield temporary
        if target.is_dir() and temporary.is_file():
            raise UserError(f"{target}: is a folder, a file is needed")
        replaced = aside / "replaced"
        if target.is_dir():
            target.rename(replaced)
        try:
            os.replace(temporary, target)
        except OSError:
            if replaced.is_dir():
                replaced.rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
