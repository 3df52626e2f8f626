"""SGLang's adaptive draft length: up and down a ladder by the mean accepted length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_sim.policies.batch_length import BatchLength

if TYPE_CHECKING:
    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView

LADDERS = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
"""Lengths to choose from, by the smallest number of decoding requests they hold for."""
DOWN, DOWN_TO_NONE, UP = 0.75, 0.25, 0.5
"""SGLang's bounds of half a token, with its hysteresis of −0.25 downwards and 0 upwards."""


def read_sgl_ema(spec: Spec) -> SglEma:
    """sgl-ema[:ema=0.2,every=5,warmup=10] climbs a ladder of lengths set by the batch size."""
    spec.expect(0, 0, "ema", "every", "warmup")
    return SglEma(spec)


@dataclass
class Slot:
    """A ladder with the rung it stands on, its average of accepted drafts, and its steps."""

    ladder: list[int]
    rung: int
    ema: float
    steps: int = 0

    @classmethod
    def at(cls, ladder: list[int], length: int) -> Slot:
        """Begin at a length of the ladder, or in its middle, as if all but one were accepted."""
        rung = ladder.index(length) if length in ladder else len(ladder) // 2
        return cls(ladder, rung, ladder[rung] - 1.0)

    @property
    def length(self) -> int:
        """The length that is drafted."""
        return self.ladder[self.rung]

    def move(self) -> None:
        """Go down as many rungs as the average asks for, else up; from 0 to the next, to try it."""
        if self.length == 0:
            self.rung = min(1, len(self.ladder) - 1)
            self.ema = self.length - 1.0 if self.ema < 0.0 else self.ema
            return
        before = self.rung
        while self.rung and self.ema <= _bound(self.ladder[self.rung - 1]):
            self.rung -= 1
        if self.rung == before:
            while self.rung + 1 < len(self.ladder) and self.ema > self.length - UP:
                self.rung += 1


class SglEma(BatchLength):
    """Every batch size belongs to a ladder, and every ladder has an EMA of accepted drafts.

    Every `every` steps of a ladder, after `warmup`: down while the EMA is at most the next lower
    length − 0.75 (0.25 where that is 0); if not, up while it exceeds the length − 0.5. From 0 it
    goes up a rung without asking. A ladder begins at γ, or in its middle if it lacks that
    (SGLang, `speculative/adaptive_spec_params.py`).
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._weight = spec.key("ema", 0.2, 0.0, 1.0)
        self._every = spec.whole_key("every", 5, 1)
        self._warmup = spec.whole_key("warmup", 10)
        ladders = {n: sorted({min(k, spec.gamma) for k in ks}) for n, ks in LADDERS.items()}
        self._slots = {n: Slot.at(ladder, spec.gamma) for n, ladder in ladders.items()}
        self._last: Slot | None = None

    def choose(self, view: DraftView) -> int:
        """Return the rung that the accepted lengths of this batch size's ladder led to."""
        if self._last is not None:
            self._observe(self._last, view)
        self._last = self._slots[max(n for n in self._slots if n <= max(view.num_requests, 1))]
        return self._last.length

    def _observe(self, slot: Slot, view: DraftView) -> None:
        if slot.length > 0:
            drafted = view.last_verify_len > 0
            if not drafted.any():  # all have left, or none of those here was there
                return
            mean = float(view.last_accepted[drafted].mean())
            slot.ema += self._weight * (mean - slot.ema)
        slot.steps += 1
        if slot.steps > self._warmup and (slot.steps - self._warmup) % self._every == 0:
            slot.move()


def _bound(lower: int) -> float:
    return lower - DOWN if lower else DOWN_TO_NONE
