"""SGLang's adaptive draft length: up and down a ladder by the mean accepted length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.policies.batch_length import BatchLength

if TYPE_CHECKING:
    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView

LADDERS = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
"""Lengths to choose from, by the smallest number of decoding requests they hold for."""
DOWN, UP = 0.75, 0.5


def read_sgl_ema(spec: Spec) -> SglEma:
    """sgl-ema[:ema=0.2,every=5,warmup=10] climbs a ladder of lengths set by the batch size."""
    spec.expect(0, 0, "ema", "every", "warmup")
    return SglEma(spec)


class SglEma(BatchLength):
    """The EMA of accepted drafts per request moves the length one rung up or down.

    Every `every` steps, after `warmup`: up if the EMA exceeds the length − 0.5, down if it is at
    most the next lower length − 0.75. Another batch size may bring another ladder; the length then
    is its highest rung not above the old one.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._weight = spec.key("ema", 0.2, 0.0, 1.0)
        self._every = spec.whole_key("every", 5, 1)
        self._warmup = spec.whole_key("warmup", 10)
        self._steps = 0
        self.length, self.ema = self.max_draft_len, float("nan")

    def choose(self, view: DraftView) -> int:
        """Return the rung that the accepted lengths so far lead to."""
        self._observe(view)
        ladder = self._ladder(view.num_requests)
        rung = max((i for i, k in enumerate(ladder) if k <= self.length), default=0)
        if self._steps > self._warmup and self._steps % self._every == 0:
            if rung > 0 and self.ema <= ladder[rung - 1] - DOWN:
                rung -= 1
            elif rung + 1 < len(ladder) and self.ema > ladder[rung] - UP:
                rung += 1
        self.length = ladder[rung]
        return self.length

    def _observe(self, view: DraftView) -> None:
        self._steps += 1
        drafted = view.last_verify_len > 0
        if drafted.any():
            mean = float(view.last_accepted[drafted].mean())
            first = self.ema != self.ema
            self.ema = mean if first else self.ema + self._weight * (mean - self.ema)

    def _ladder(self, num: int) -> list[int]:
        least = max(start for start in LADDERS if start <= max(num, 1))
        return sorted({min(k, self.max_draft_len) for k in LADDERS[least]})
