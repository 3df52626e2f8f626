"""What `forecast` remembers: recent blocks of the whole batch, and how late steps really are."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.view import DraftView, SchedulerView

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LEAST_BLOCKS = 256
BATCHES = 4
LATENESS_WEIGHT, DRAFT_WEIGHT = 0.1, 0.5
OWN_BLOCKS = 8
"""Blocks of its own that a request is judged by, and as many average ones beside them."""


class BlockPool:
    """Survivals of recently drafted blocks: at least 256, and those of 4 batches.

    New requests add nothing before their first block, so that they count as the average one.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._steps: deque[Floats] = deque()
        self._blocks = 0

    @property
    def empty(self) -> bool:
        """Whether no block is known yet."""
        return self._blocks == 0

    def seed(self, history: Floats) -> None:
        """Begin with the survivals (R, 3, γ) that the engine remembers, where there are none."""
        if self.empty:
            known = history[(history < 1.0).any(axis=2)]
            self.add(known[:, : self._gamma], len(history))

    def add(self, survival: Floats, num_requests: int) -> None:
        """Take in the blocks (n, γ) of a step and forget the oldest ones."""
        if len(survival) == 0:
            return
        self._steps.append(survival)
        self._blocks += len(survival)
        most = max(LEAST_BLOCKS, BATCHES * num_requests)
        while self._blocks - len(self._steps[0]) >= most:
            self._blocks -= len(self._steps.popleft())

    def expected(self, drafting: int, length: int) -> Floats:
        """Return the accepted tokens to expect of the best K, for K = 0..drafting · length.

        The mean over batches of that many remembered blocks; where there are fewer blocks, those
        there are, scaled to the batch.
        """
        if drafting == 0 or length == 0:
            return np.zeros(1)
        pool = np.concatenate(self._steps)[:, :length]
        size = min(drafting, len(pool))
        batches = pool[len(pool) % size :].reshape(-1, size * length)
        best = -np.sort(-batches, axis=1)
        sums = np.concatenate(([0.0], np.cumsum(best, axis=1).mean(axis=0)))
        share = np.arange(drafting * length + 1) * (size / drafting)
        return np.asarray(np.interp(share, np.arange(len(sums)), sums) * (drafting / size))

    def surplus(self, price: float) -> float:
        """Return what an average block brings beyond the price of its tokens."""
        return block_surplus(np.concatenate(self._steps), price) / self._blocks


def block_surplus(survival: Floats, price: float) -> float:
    """Return Σ (survival − price) over the tokens of blocks (n, γ) where it is positive."""
    return float(np.maximum(survival - price, 0.0).sum())


class StepClock:
    """How much longer steps take than is believed: what the cost table leaves out.

    An average that forgets a tenth with every step. A step is timed if one of its requests is
    still there in the next one, so that the engine cannot have been idle in between. What drafting
    adds is known from neighbouring steps of which one drafted.
    """

    def __init__(self) -> None:
        self.draft_late_ns = 0.0
        self._late_ns: float | None = None
        self._last: tuple[float, bool] | None = None  # how late the last step was, if it drafted
        self._began_s = 0.0
        self._believed_ns = 0.0
        self._drafted = False
        self._requests: set[int] = set()

    def lateness(self, view: DraftView) -> float:
        """Take the time of the last step, once, and return the average without drafts in ns."""
        if self._believed_ns > 0.0 and self._requests.intersection(view.request.tolist()):
            self._take((view.time_s - self._began_s) * NS_PER_S - self._believed_ns)
        self._believed_ns = 0.0
        return self._late_ns or 0.0

    def _take(self, late_ns: float) -> None:
        if self._last is not None and self._last[1] != self._drafted:
            added_ns = late_ns - self._last[0] if self._drafted else self._last[0] - late_ns
            self.draft_late_ns += DRAFT_WEIGHT * (added_ns - self.draft_late_ns)
        self._last = late_ns, self._drafted
        bare_ns = late_ns - self.draft_late_ns * self._drafted
        known = bare_ns if self._late_ns is None else self._late_ns
        self._late_ns = known + LATENESS_WEIGHT * (bare_ns - known)

    def note(self, view: SchedulerView, verified: int) -> None:
        """Remember when this step began and how long it should take."""
        drafting, longest = int((view.draft_len > 0).sum()), int(view.draft_len.max(initial=0))
        tokens = view.num_requests + view.prefill_tokens + verified
        seconds = view.cost.step_time_s(tokens, drafting, longest)
        self._began_s, self._requests = view.time_s, set(view.request.tolist())
        self._believed_ns = seconds * NS_PER_S if np.isfinite(seconds) else 0.0
        self._drafted = drafting > 0


def request_surplus(
    view: DraftView, blocks: dict[int, Floats], price: float, usual: float
) -> Floats:
    """Return what each request's next block should bring beyond the price of its tokens, (R,).

    The mean over its last 8 blocks and 8 average ones, each of which brings `usual`.
    """
    own = [blocks.get(request) for request in view.request.tolist()]
    sums = [0.0 if block is None else block_surplus(block, price) for block in own]
    counts = np.array([0 if block is None else len(block) for block in own])
    return np.asarray((np.array(sums) + OWN_BLOCKS * usual) / (counts + OWN_BLOCKS))
