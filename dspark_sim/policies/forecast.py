"""A policy of our own: drafts and verifies by a forecast of what the coming blocks are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dspark_sim.policies.calibration_maps import Platt
from dspark_sim.policies.forecast_pool import (
    OWN_BLOCKS,
    BlockPool,
    StepClock,
    request_surplus,
)
from dspark_sim.policies.search import allocate_budget, new_scratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.policies.spec import Spec
    from dspark_sim.policies.view import DraftView, SchedulerView

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MARGIN = 0.01
"""How much faster a step without drafts must promise to be before drafting stops."""
PROBE_STEPS, RAREST_PROBE = 32, 256
"""While nothing is drafted, this many steps pass before one drafts all the same, to go on learning;
twice as many after each that changes nothing, up to the second number."""
CLOSE = 0.05
"""Where not drafting promises less by no more than this share, one step in 32 does not draft."""
PROBE_ROUNDS = 8
"""A request that is left out drafts in one of so many of its own steps all the same."""


def read_forecast(spec: Spec) -> Forecast:
    """Draft whom and verify what a forecast from past blocks says is worth its time."""
    spec.expect(0, 0)
    return Forecast(spec)


class Plan(NamedTuple):
    """The best a step can promise: its rate in tokens/ns, its budget, and a token's price."""

    rate: float
    budget: int
    price: float


class Forecast:
    """Decides from calibrated blocks of the past what this step drafts and how much it verifies.

    The survivals of recent blocks, calibrated by what was accepted, say what m drafting requests
    are worth for any budget K; together with the believed costs, and what steps really took beyond
    them, they give the best K before anything is drafted. Nothing is drafted where that promises
    less than not drafting; a request is left out whose own past blocks do not pay for its draft.
    The budget goes to the highest live calibrated survivals. It depends on the past alone, which
    keeps the rule lossless (arXiv 2607.05147, section 5.2).
    """

    needs_confidence = True
    lossless = True

    def __init__(self, spec: Spec) -> None:
        self.name, self.max_draft_len = spec.text, spec.gamma
        self._map = Platt(spec.gamma, early=True)
        self._pool = BlockPool(spec.gamma)
        self._clock = StepClock()
        self._reported: dict[int, Floats] = {}  # confidences of the last step, by request
        self._blocks: dict[int, Floats] = {}  # calibrated survivals (8, γ) at most, newest first
        self._steps = self._idle_steps = 0
        self._pause = PROBE_STEPS

    def draft_lengths(self, view: DraftView) -> Ints:
        """Return draft_len (R,): one length for those whose drafts pay, 0 for the others."""
        self._pool.seed(view.history)
        late_ns = self._clock.lateness(view)
        num, gamma = view.num_requests, view.max_draft_len
        if self._pool.empty or num == 0 or gamma == 0:
            return np.full(num, gamma)
        nothing = self._plan(view, 0, 0, late_ns)
        plans = {length: self._plan(view, num, length, late_ns) for length in self._lengths(view)}
        length = max(plans, key=lambda k: (plans[k].rate, k))
        if self._is_idle(nothing.rate, plans[length].rate):
            return np.zeros(num, dtype=np.int64)
        if nothing.rate > plans[length].rate:
            return np.full(num, length)
        one_more_ns = int(view.cost.draft_ns[num, length] - view.cost.draft_ns[num - 1, length])
        price = plans[length].price
        surplus = request_surplus(view, self._blocks, price, self._pool.surplus(price))
        pays = surplus >= plans[length].rate * one_more_ns
        pays |= view.decode_steps % PROBE_ROUNDS == 0
        return np.where(pays | ~pays.any(), length, 0)

    def verify_lengths(self, view: SchedulerView) -> Ints:
        """Return verify_len (R,): the forecast's budget, spent on the best live survivals."""
        self._learn(view)
        self._pool.seed(view.history)
        drafting = view.draft_len > 0
        shown = np.where(
            (view.confidence > 0.0) & (view.confidence < 1.0),
            self._map.apply(view.confidence, view.confidence),
            view.confidence,
        )
        survival = np.cumprod(shown, axis=1, dtype=np.float64)
        longest = int(view.draft_len.max(initial=0))
        budget = int(view.draft_len.sum())
        if not self._pool.empty and longest > 0:
            late_ns = self._clock.lateness(view)
            budget = self._plan(view, int(drafting.sum()), longest, late_ns).budget
        lengths = _spend(survival, view.draft_len, budget)
        self._remember(view, survival, lengths)
        return lengths

    def _is_idle(self, nothing: float, drafting: float) -> bool:
        """Return whether nothing is drafted, given the rates that are promised with and without."""
        self._steps += 1
        if nothing <= (1.0 + MARGIN) * drafting:
            self._idle_steps, self._pause = 0, PROBE_STEPS
            return nothing > (1.0 - CLOSE) * drafting and self._steps % PROBE_STEPS == 0
        self._idle_steps += 1
        if self._idle_steps <= self._pause:
            return True
        self._idle_steps, self._pause = 0, min(2 * self._pause, RAREST_PROBE)
        return False

    def _lengths(self, view: DraftView) -> list[int]:
        """Return the draft lengths worth a thought: γ alone where shorter drafts cost the same."""
        costs, gamma = view.cost.draft_ns[view.num_requests], view.max_draft_len
        return list(range(1, gamma + 1)) if costs[gamma] > 1.05 * costs[1] else [gamma]

    def _plan(self, view: DraftView, drafting: int, length: int, late_ns: float) -> Plan:
        """Return the best budget if `drafting` requests draft `length` tokens."""
        others = view.num_requests + view.prefill_tokens
        most = min(drafting * length, len(view.cost.verify_ns) - 1 - others)
        verify_ns = view.cost.verify_ns[others : others + most + 1]
        expected = self._pool.expected(drafting, length)[: most + 1]
        draft_ns = 0.0
        if drafting:
            draft_ns = view.cost.draft_ns[drafting, length] + self._clock.draft_late_ns
        time_ns = np.maximum(view.cost.fixed_ns + draft_ns + late_ns + verify_ns, 1.0)
        rates = np.where(verify_ns < 0, 0.0, (view.num_sampling + expected) / time_ns)
        budget = int(np.argmax(rates))
        price = float(expected[budget] - expected[budget - 1]) if budget else 1.0
        return Plan(float(rates[budget]), budget, price)

    def _learn(self, view: SchedulerView) -> None:
        known = [
            row
            for row, request in enumerate(view.request.tolist())
            if request in self._reported and view.last_verify_len[row] > 0
        ]
        if known:
            reported = np.array([self._reported[r] for r in view.request[known].tolist()])
            self._map.learn(reported, view.last_verify_len[known], view.last_accepted[known])

    def _remember(self, view: SchedulerView, survival: Floats, lengths: Ints) -> None:
        drafted, requests = np.flatnonzero(view.draft_len > 0), view.request.tolist()
        self._pool.add(survival[drafted], view.num_requests)
        self._reported = {requests[row]: view.confidence[row] for row in drafted.tolist()}
        blocks = {r: self._blocks[r] for r in requests if r in self._blocks}
        for row in drafted.tolist():
            old = blocks.get(requests[row], np.zeros((0, survival.shape[1])))
            blocks[requests[row]] = np.vstack([survival[row], old[: OWN_BLOCKS - 1]])
        self._blocks = blocks
        self._clock.note(view, int(lengths.sum()))


def _spend(survival: Floats, draft_len: Ints, budget: int) -> Ints:
    num = len(draft_len)
    lengths = np.zeros(num, dtype=np.int64)
    scratch = new_scratch(num, survival.shape[1])
    allocate_budget(survival, draft_len, num, 0, budget, lengths, scratch)
    return lengths
