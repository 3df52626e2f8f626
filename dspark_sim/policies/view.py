"""What a policy may see: everything a real scheduler knows, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BelievedCost:
    """What a policy believes a step costs. By default the engine's own tables.

    Attributes
    ----------
    verify_ns : (M + 1,)
        Cost of a target pass by batch tokens, -1 where the table does not reach.
    draft_ns : (R + 1, γ + 1)
        Cost of drafting by drafting requests and draft length.
    fixed_ns : int
        The rest of this step: overhead, the term by number of requests, and the context term if
        the belief has one.
    """

    verify_ns: Ints
    draft_ns: Ints
    fixed_ns: int

    def step_time_s(self, batch_tokens: int, num_drafting: int = 0, draft_len: int = 0) -> float:
        """Return the believed time of a step; infinite where the table does not reach."""
        if not 0 <= batch_tokens < len(self.verify_ns) or self.verify_ns[batch_tokens] < 0:
            return float("inf")
        draft = self.draft_ns[num_drafting, draft_len]
        return float(self.fixed_ns + draft + self.verify_ns[batch_tokens]) * 1e-9

    def steps_per_second(
        self, batch_tokens: int, num_drafting: int = 0, draft_len: int = 0
    ) -> float:
        """Return SPS(B) = 1 / (overhead + draft[R] + verify[B]) of arXiv 2607.05147, Alg. 1."""
        return 1.0 / self.step_time_s(batch_tokens, num_drafting, draft_len)


@dataclass(frozen=True)
class DraftView:
    """What is known before drafting, for R decoding requests in order of admission.

    Attributes
    ----------
    time_s : float
    request : (R,)
        Index of each request in the trace, to key own state by.
    context_tokens, output_tokens, decode_steps : (R,)
        Tokens in the KV cache, tokens generated so far, decode steps taken so far.
    last_verify_len, last_accepted : (R,)
        Of the request's last step: draft tokens verified, and how many of *those* were accepted
        (censored: what was not verified is not known). -1 before the first step.
    history : (R, 3, γ)
        Survival of the request's last three drafted blocks, newest first; 1 where there is none.
    prefill_tokens, num_sampling, num_waiting : int
        Prompt tokens in this step, requests that emit a token in it, requests in the queue.
    cost : BelievedCost
    max_draft_len : int
        γ, tokens a request may draft.
    """

    time_s: float
    request: Ints
    context_tokens: Ints
    output_tokens: Ints
    decode_steps: Ints
    last_verify_len: Ints
    last_accepted: Ints
    history: Floats
    prefill_tokens: int
    num_sampling: int
    num_waiting: int
    cost: BelievedCost
    max_draft_len: int

    @property
    def num_requests(self) -> int:
        """R, requests that decode in this step."""
        return len(self.request)


@dataclass(frozen=True)
class SchedulerView(DraftView):
    """What is known after drafting: also the drafted lengths (R,) and confidences (R, γ).

    Confidence is the conditional acceptance the drafter reports per position, 0 where nothing was
    drafted. True outcomes are not here, and neither are output lengths.
    """

    draft_len: Ints
    confidence: Floats

    @property
    def survival(self) -> Floats:
        """Survival a_{r,j} = Π_{i≤j} c_{r,i}, shape (R, γ)."""
        return np.cumprod(self.confidence, axis=1, dtype=np.float64)

    def lagged_survival(self, lag: int) -> Floats:
        """Return survival as known `lag` of the request's steps ago (0: live), shape (R, γ)."""
        return self.survival if lag == 0 else self.history[:, lag - 1]


class Policy(Protocol):
    """How many drafted tokens each request verifies. One instance serves one replica.

    A policy may also define ``draft_lengths(view: DraftView)``, returning how many tokens each
    request drafts (R,) in 0..γ; without it every request drafts γ.
    """

    def verify_lengths(self, view: SchedulerView) -> Ints:
        """Return verify_len (R,), each in 0..draft_len."""
        ...
