"""Gates that turn drafting off for good: for all requests, or for one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.policies.batch_length import BatchLength

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView

    Ints = NDArray[np.int64]


def read_gate_off(spec: Spec) -> GateOff:
    """gate-off:LEAST[,window=32] ends all drafting once finished requests accepted too little."""
    spec.expect(1, 1, "window")
    return GateOff(spec)


def read_sticky_off(spec: Spec) -> StickyOff:
    """sticky-off[:LEAST,probe=8] ends a request's drafting once it has accepted too little."""
    spec.expect(0, 1, "probe")
    return StickyOff(spec)


class Tally:
    """Drafting steps and accepted drafts of every request that decodes, by what a view tells."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[int, int]] = {}

    def observe(self, view: DraftView) -> list[float]:
        """Count the last step; return the mean accepted drafts of requests that have left."""
        before, self.of = self.of, {}
        last = zip(
            view.request.tolist(),
            view.last_verify_len.tolist(),
            view.last_accepted.tolist(),
            strict=True,
        )
        for request, verified, accepted in last:
            steps, total = before.pop(request, (0, 0))
            drafted = verified > 0
            self.of[request] = (steps + drafted, total + (accepted if drafted else 0))
        return [total / steps for steps, total in before.values() if steps]


class GateOff(BatchLength):
    """Drafts γ until the mean accepted drafts of the last `window` finished requests is too low.

    A finished request's last step is not seen: it has left before the next view.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._least = spec.number("LEAST", spec.args[0], 0.0, 1e9)
        self._finished: deque[float] = deque(maxlen=spec.whole_key("window", 32, 1))
        self._tally = Tally()
        self.off = False

    def choose(self, view: DraftView) -> int:
        """Return γ, or 0 for good once the gate has fallen."""
        self._finished.extend(self._tally.observe(view))
        if len(self._finished) == self._finished.maxlen:
            self.off = self.off or float(np.mean(self._finished)) < self._least
        return 0 if self.off else self.max_draft_len


class StickyOff(BatchLength):
    """Drafts γ for every request but those whose lifetime mean is too low after two probes.

    A probe is `probe` drafting steps of the request; once off, it stays off.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._least = spec.number("LEAST", spec.args[0] if spec.args else "0.5", 0.0, 1e9)
        self._steps = 2 * spec.whole_key("probe", 8, 1)
        self._tally = Tally()

    def draft_lengths(self, view: DraftView) -> Ints:
        """Return γ or 0 for each request (R,)."""
        self._tally.observe(view)
        counts = np.array([self._tally.of[request] for request in view.request.tolist()])
        steps, accepted = counts.reshape(-1, 2).T
        off = (steps >= self._steps) & (accepted < self._least * steps)
        return np.where(off, 0, self.max_draft_len)
