"""Category-aware mixtures: each category of requests has its own law or recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.source import AcceptanceSource, Member
from dspark_sim.core import UserError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class MixedAcceptance(AcceptanceSource):
    """One source per category; `default` answers for requests of any other category."""

    name: str
    sources: Mapping[str, AcceptanceSource]
    default: AcceptanceSource | None = None
    origin: str = "mixture"

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("a mixture needs at least one category=NAME")

    @property
    def max_draft_len(self) -> int:
        """Longest block that all parts can answer for, in draft tokens."""
        return min(source.max_draft_len for source in self._parts().values())

    def members(self) -> list[Member]:
        """Return the members of all parts, one part after the other."""
        return [member for source in self._parts().values() for member in source.members()]

    def assign(self, categories: Sequence[str]) -> NDArray[np.int32]:
        """Return each request's member: its category's part, else the default."""
        assigned = np.zeros(len(categories), dtype=np.int32)
        known = set(self.sources)
        offset = 0
        labels = np.array([name if name in known else "" for name in categories], dtype=object)
        if self.default is None and (labels == "").any():
            culprit = next(name for name in categories if name not in known)
            raise unknown_name("category", culprit, known, f"mixture '{self.name}'")
        for label, source in self._parts().items():
            mine = np.flatnonzero(labels == label)
            assigned[mine] = offset + source.assign([categories[int(i)] for i in mine])
            offset += len(source.members())
        return assigned

    def _parts(self) -> dict[str, AcceptanceSource]:
        rest = {"": self.default} if self.default is not None else {}
        return {**self.sources, **rest}
