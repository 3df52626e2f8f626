"""Built-in policies: a rule that runs as a Numba kernel, and the step it decides on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray  # noqa: TC002

from dspark_sim.core import UserError
from dspark_sim.policies.switches import AS_IS, Switches

if TYPE_CHECKING:
    from dspark_sim.policies.search import Scratch
    from dspark_sim.policies.view import DraftView, SchedulerView

# Numbers of the rules, for `rules.decide`: those from `RATIO` on spend a budget, those from
# `DSPARK_ASYNC` on find it by one search
(
    FIXED,
    THRESHOLD,
    DSPARK,
    ATOM,
    K_TABLE,
    ORACLE,
    RATIO,
    DCUT,
    TETRIS,
    KNEE,
    DSPARK_ASYNC,
    VLLM,
    SGLANG,
    TRT,
) = range(14)


class Decision(NamedTuple):
    """One step as a rule's kernel sees it, for the first `num` of the rows. Shapes as in the view.

    `clock` is (num, prefill_tokens, num_sampling, fixed_ns, draft_ns of this step). `accepted` is
    read by the oracle alone. `memory` is the policy's own, kept between steps. `switches` are as
    `Switches.packed` gives them.
    """

    clock: NDArray[np.int64]  # (5,)
    draft_len: NDArray[np.int64]  # (R,)
    confidence: NDArray[np.float64]  # (R, γ)
    survival: NDArray[np.float64]  # (R, γ), live
    stale: NDArray[np.float64]  # (R, γ), as old as the policy's lag
    last_verify_len: NDArray[np.int64]  # (R,)
    last_accepted: NDArray[np.int64]  # (R,), censored
    verify_ns: NDArray[np.int64]  # (M + 1,), believed
    memory: NDArray[np.float64]  # (P,)
    switches: NDArray[np.float64]  # (5,)
    accepted: NDArray[np.int64]  # (R,), the oracle's door
    verify_len: NDArray[np.int64]  # (R,), the answer
    scratch: Scratch


@dataclass(frozen=True)
class KernelPolicy:
    """A built-in rule.

    Attributes
    ----------
    name : str
        As the user writes it, e.g. `fixed:3`.
    rule : int
        Which kernel decides.
    max_draft_len : int
        γ, tokens each request drafts.
    params : tuple of float
    lag : int
        Age in steps of the survival in `stale`.
    needs_confidence : bool
    believes : str
        How the cost table is read: "truth" or "monotone".
    lossless : bool
        Whether the output keeps the target's distribution.
    knows_outcomes : bool
        True for the oracle.
    memory : tuple of float
        What the rule remembers at the start of a run.
    switches : Switches
    """

    name: str
    rule: int
    max_draft_len: int
    params: tuple[float, ...] = ()
    lag: int = 0
    needs_confidence: bool = True
    believes: str = "truth"
    lossless: bool = True
    knows_outcomes: bool = False
    memory: tuple[float, ...] = ()
    switches: Switches = AS_IS
    _kept: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Lay out what the rule remembers between calls."""
        object.__setattr__(self, "_kept", np.array(self.memory, dtype=np.float64))

    def draft_lengths(self, view: DraftView) -> NDArray[np.int64]:
        """Return draft_len (R,): γ, unless the rule knows a better length before drafting."""
        from dspark_sim.policies.rules import draft_length

        num, gamma = view.num_requests, min(self.max_draft_len, view.max_draft_len)
        return np.full(num, draft_length(self.rule, self.packed_params, num, gamma))

    def verify_lengths(self, view: SchedulerView) -> NDArray[np.int64]:
        """Return verify_len (R,), the same as inside the engine."""
        if self.knows_outcomes:
            raise UserError(f"policy '{self.name}' needs true outcomes, which no view holds")
        return self.verify_lengths_knowing(view, np.zeros(view.num_requests, dtype=np.int64))

    def verify_lengths_knowing(
        self, view: SchedulerView, accepted: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return verify_len (R,) of a rule that is handed true outcomes (R,): the oracle's door."""
        from dspark_sim.policies.rules import decide

        decision = self.decision(view, accepted)
        decide(self.rule, self.packed_params, decision)
        return decision.verify_len

    @property
    def packed_params(self) -> NDArray[np.float64]:
        """The parameters as the kernels read them."""
        return np.array([*self.params, 0.0])

    def decision(self, view: SchedulerView, accepted: NDArray[np.int64]) -> Decision:
        """Return the step as the rule's kernel reads it."""
        from dspark_sim.policies.search import new_scratch

        num = view.num_requests
        drafting = int((view.draft_len > 0).sum())
        longest = int(view.draft_len.max(initial=0))
        clock = [num, view.prefill_tokens, view.num_sampling, view.cost.fixed_ns]
        return Decision(
            clock=np.array([*clock, view.cost.draft_ns[drafting, longest]], dtype=np.int64),
            draft_len=view.draft_len,
            confidence=view.confidence,
            survival=view.survival,
            stale=np.ascontiguousarray(view.lagged_survival(self.lag)),
            last_verify_len=view.last_verify_len,
            last_accepted=view.last_accepted,
            verify_ns=view.cost.verify_ns,
            memory=self._kept,
            switches=np.array(self.switches.packed()),
            accepted=accepted,
            verify_len=np.zeros(num, dtype=np.int64),
            scratch=new_scratch(*view.confidence.shape),
        )
