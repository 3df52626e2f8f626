"""How a drafter looks in every picture: one colour and marker, whoever else is shown.

Okabe-Ito colours for the drafters known here; other names take colour and marker from a hash.
Recordings of one drafter at several temperatures or against several targets differ in line and in
how their markers are filled.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_sim.study.style import COLOURS, MARKERS

if TYPE_CHECKING:
    import pandas as pd

DRAFTERS = {
    "dspark-markov": ("#009E73", "s"),
    "dspark-rnn": ("#CC79A7", "D"),
    "dspark-markov-1layer": ("#56B4E9", "v"),
    "dflash": ("#D55E00", "o"),
    "eagle3": ("#0072B2", "^"),
    "mtp1": ("#E69F00", "h"),
    "ngram": ("#000000", "X"),
    "dspark": ("#009E73", "s"),  # the paper's default head is the Markov head
}
"""Drafter to colour and marker; a later drafter is one more line."""

LINES: tuple[tuple[Any, str], ...] = (
    ("-", "full"),
    ((0.0, (4.0, 1.6)), "none"),
    ((0.0, (1.0, 1.3)), "left"),
    ((0.0, (5.0, 1.4, 1.0, 1.4)), "right"),
    ((0.0, (8.0, 1.5, 3.0, 1.5)), "bottom"),
    ((0.0, (5.0, 1.2, 1.0, 1.2, 1.0, 1.2)), "top"),
)
"""Line and marker filling by target and temperature: known targets first, hottest first."""


@dataclass(frozen=True)
class DrafterStyle:
    """Colour (hex), marker, line style and marker filling of one recording."""

    colour: str
    marker: str
    linestyle: Any
    fill: str

    def look(self) -> dict[str, Any]:
        """Return the keywords of matplotlib's `plot`."""
        hollow = self.fill == "none"
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.linestyle,
            "fillstyle": "full" if hollow else self.fill,
            "markerfacecolor": "white" if hollow else self.colour,
            "markerfacecoloralt": "white",
        }


def drafter_of(name: str) -> str:
    """Return the drafter that a recording's name tells of: the longest known one, or the name.

    >>> drafter_of("tiny-dspark-markov-t1"), drafter_of("chat-eagle3")
    ('dspark-markov', 'eagle3')
    """
    return max((known for known in DRAFTERS if known in name), key=len, default=name)


def drafter_colour(drafter: str) -> tuple[str, str]:
    """Return colour and marker of a drafter, a function of its name alone."""
    luck = zlib.crc32(drafter.encode())
    fallback = COLOURS[luck % len(COLOURS)], MARKERS[luck // 8 % len(MARKERS)]
    return DRAFTERS.get(drafter, fallback)


def drafter_styles(recordings: pd.DataFrame) -> dict[str, DrafterStyle]:
    """Return the look of every recording of a picture, no two alike while lines last.

    `recordings` has the columns recording, drafter, target and temperature.
    """
    cold = -recordings["temperature"].fillna(-1.0)
    unknown = recordings["target"] == ""
    kinds = list(zip(unknown, recordings["target"], cold, strict=True))
    order = sorted(set(kinds))
    styles: dict[str, DrafterStyle] = {}
    for name, drafter, kind in zip(
        recordings["recording"], recordings["drafter"], kinds, strict=True
    ):
        first = order.index(kind)
        turned = [LINES[(first + turn) % len(LINES)] for turn in range(len(LINES))]
        tries = [DrafterStyle(*drafter_colour(drafter), *line) for line in turned]
        taken = set(styles.values())
        styles[name] = next((style for style in tries if style not in taken), tries[0])
    return styles
