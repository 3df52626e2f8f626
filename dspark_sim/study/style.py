"""How a policy looks in every picture: one colour, marker, line and label, whoever else is shown.

Okabe-Ito colours for the families known here; members of a family (`fixed:1`, `fixed:7`) are
shades of one hue with markers of their own; other names take colour and marker from a hash.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan
from typing import TYPE_CHECKING

from dspark_sim.policies import is_lossless

if TYPE_CHECKING:
    from collections.abc import Iterable

FAMILIES = {
    "none": ("#000000", "X"),
    "threshold": ("#E69F00", "D"),
    "dspark": ("#009E73", "s"),
    "dspark-async": ("#CC79A7", "P"),
    "vllm": ("#D55E00", "o"),
    "k-table": ("#4477AA", "h"),
    "sglang": ("#117733", ">"),
    "trt": ("#76B900", "^"),
    "atom": ("#AA3377", "v"),
    "dcut": ("#EE7733", "<"),
    "ratio": ("#BBCC33", "d"),
    "tetris": ("#AA4499", "H"),
    "knee": ("#66CCEE", "8"),
    "smartspec": ("#225555", "D"),
    "dsd-online": ("#997700", "s"),
    "sgl-ema": ("#228833", "P"),
    "gate-off": ("#663333", "X"),
    "sticky-off": ("#BB5566", "p"),
    "forecast": ("#CC3311", "*"),
    "oracle": ("#7F7F7F", "p"),
}
"""Family name to colour and marker; a later family is one more line."""

RAMPS = {
    "fixed": (1.0, ((1.0, "#A6D3F2"), (3.0, "#56B4E9"), (5.0, "#0072B2"), (7.0, "#00304D"))),
    "threshold": (20.0, ((0.2, "#F6CF80"), (0.6, "#E69F00"), (0.95, "#7A5200"))),
}
"""Families with a number as first argument: markers per unit, and shades, linear in between."""

COLOURS = (
    "#332288", "#999933", "#882255", "#44AA99", "#8C564B", "#CC6677", "#6A51A3", "#B8A100",
)  # fmt: skip
MARKERS = ("D", "v", "d", "^", "s", "<", "h", ">", "P", "o", "X", "p")
DASHES = (0.0, (6.0, 1.5, 1.5, 1.5))


@dataclass(frozen=True)
class PolicyStyle:
    """Colour (hex), marker, line style and legend label of one policy."""

    colour: str
    marker: str
    linestyle: str | tuple[float, tuple[float, ...]]
    label: str


def policy_styles(policies: Iterable[str]) -> dict[str, PolicyStyle]:
    """Return the look of every policy in a picture: its own, unless an earlier one has the same.

    Only two hashed looks can meet; the later policy then takes the next one that is free.
    """
    styles: dict[str, PolicyStyle] = {}
    looks: set[tuple[object, ...]] = set()
    for policy in dict.fromkeys(policies):
        tries = (policy_style(policy, skip) for skip in range(len(COLOURS) * len(MARKERS)))
        free = (style for style in tries if _look(style) not in looks)
        styles[policy] = next(free, policy_style(policy))
        looks.add(_look(styles[policy]))
    return styles


def policy_style(policy: str, skip: int = 0) -> PolicyStyle:
    """Return the look of a policy, a function of its name as written in the sweep alone.

    `skip` moves a look that comes from a hash on by so many places.

    >>> policy_style("oracle")
    PolicyStyle(colour='#7F7F7F', marker='p', linestyle='--', label='oracle (not lossless)')
    """
    family, _, rest = policy.partition(":")
    first, _, options = rest.partition(",")
    luck = zlib.crc32(policy.encode()) + skip
    colour, marker = FAMILIES.get(family, ("", ""))
    linestyle: str | tuple[float, tuple[float, ...]] = DASHES if options else "-"
    number = _number(first)
    if family in RAMPS and isfinite(number):
        per_unit, ramp = RAMPS[family]
        colour, marker = _ramp(ramp, number), MARKERS[round(number * per_unit) % len(MARKERS)]
    elif not colour:
        colour, marker = COLOURS[luck % len(COLOURS)], MARKERS[luck // 8 % len(MARKERS)]
    elif rest:
        colour = _mix(colour, "#000000" if luck % 2 else "#FFFFFF", 0.15 + luck // 2 % 4 * 0.1)
        marker = MARKERS[luck // 8 % len(MARKERS)]
    if is_lossless(policy):
        return PolicyStyle(colour, marker, linestyle, policy)
    return PolicyStyle(colour, marker, "--", f"{policy} (not lossless)")


def _look(style: PolicyStyle) -> tuple[object, ...]:
    return style.colour, style.marker, style.linestyle


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _ramp(ramp: tuple[tuple[float, str], ...], value: float) -> str:
    for (low, below), (high, above) in pairwise(ramp):
        if value <= high:
            return _mix(below, above, max(value - low, 0.0) / (high - low))
    return _mix(ramp[-1][1], "#000000", min(value / ramp[-1][0] - 1.0, 1.0) * 0.6)


def _mix(colour: str, other: str, share: float) -> str:
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)
