"""A profile's step as engines keep it: bias + α(R) + θ(M), evaluated at every size it covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.throughput.summary import default_draft_len

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dspark_sim.throughput.profile import EngineProfile

    Floats = NDArray[np.float64]
    Sizes = NDArray[np.int64]

USUAL_DRAFT_LEN = 7


@dataclass(frozen=True)
class StepTerms:
    """Step time in ms of a step in which all R requests draft: bias + α(R) + θ(M).

    Attributes
    ----------
    bias_ms : float
    requests : int array
        1, 2, … as far as the profile's tables and max_num_seqs reach.
    alpha_ms : array like `requests`
        Drafting, α(R) and the context term of R requests.
    tokens : int array
        Consecutive batch sizes, up to max_num_batched_tokens.
    theta_ms : array like `tokens`
    stepped : bool array like `tokens`
        Where θ is a staircase rather than a line.
    """

    bias_ms: float
    requests: Sizes
    alpha_ms: Floats
    tokens: Sizes
    theta_ms: Floats
    stepped: NDArray[np.bool_]

    def step_ms(self, num_requests: Sizes, batch_tokens: Sizes) -> Floats:
        """Step time; requests outside the range count as the nearest."""
        first = int(self.tokens[0])
        held = np.clip(num_requests, self.requests[0], self.requests[-1])
        alpha = self.alpha_ms[held - self.requests[0]]
        return np.asarray(self.bias_ms + alpha + self.theta_ms[batch_tokens - first])


def draft_len_of(profile: EngineProfile, draft_len: int | None) -> int:
    """Return the draft length in use: the given one, the longest measured, 7, or 0 if none can.

    Where drafting is part of a verify table that states its requests, the longest measured is the
    longest window of a row, less the anchor.
    """
    if draft_len is not None:
        return draft_len
    if profile.drafter == "none":
        return 0
    rows = profile.verify
    if profile.draft_in_verify and "num_requests" in rows and rows["num_requests"].all():
        return max(int((rows["batch_tokens"] // rows["num_requests"]).max()) - 1, 1)
    return default_draft_len(profile) or USUAL_DRAFT_LEN


def step_terms(profile: EngineProfile, draft_len: int | None, context: int) -> StepTerms:
    """Evaluate a profile for an engine's table.

    Parameters
    ----------
    profile : EngineProfile
    draft_len : int or None
        Length of the drafts whose cost is part of α; see `draft_len_of`.
    context : int
        KV tokens per request; engines' tables have no axis for it.
    """
    length = draft_len_of(profile, draft_len)
    first, last = profile.token_range
    last = min(last, profile.max_num_batched_tokens)
    tokens = np.arange(first, last + 1)
    requests = np.arange(1, profile.max_num_seqs + 1)
    requests = requests[~profile.outside_requests(requests, length)]
    if not len(tokens) or not len(requests):
        raise UserError(
            f"profile '{profile.name}': max_num_seqs = {profile.max_num_seqs} and "
            f"max_num_batched_tokens = {profile.max_num_batched_tokens} leave nothing of its tables"
        )
    per_kv = profile.context_ms_per_kv_token
    per_kv += profile.draft_context_ms_per_kv_token * (length > 0)
    alpha = profile.draft_ms(requests, length) + profile.request_ms(requests)
    regime = profile.regime(tokens)
    return StepTerms(
        profile.overhead_ms,
        requests,
        alpha + per_kv * context * requests,
        tokens,
        profile.verify_ms(tokens),
        (regime == "captured") | (profile.lookup == "floor"),
    )
