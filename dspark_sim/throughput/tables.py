"""Dense step costs in whole nanoseconds, for the simulator's kernels and a policy's belief."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import NS_PER_MS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dspark_sim.throughput.profile import EngineProfile

OUT_OF_RANGE = -1


def to_ns(ms: ArrayLike) -> NDArray[np.int64]:
    """Round milliseconds to whole nanoseconds."""
    return np.rint(np.asarray(ms, dtype=np.float64) * NS_PER_MS).astype(np.int64)


@dataclass(frozen=True, eq=False)
class CostTables:
    """Step costs by index; a belief about them is another `CostTables`.

    Attributes
    ----------
    overhead_ns : int
        Added to every step.
    verify_ns : int64 (max_batch_tokens + 1,)
        Cost of M target tokens at zero context; 0 at M = 0, -1 where the table does not reach.
    draft_ns : int64 (max_requests + 1, max_draft_len + 1)
        Cost of drafting a length for R requests; row 0 and column 0 are 0.
    request_ns : int64 (max_requests + 1,)
        The additive α(R) of T = bias + α(R) + θ(M); 0 at R = 0.
    context_ns_per_kv_token, draft_context_ns_per_kv_token : float
        Cost per KV token read, of every step and of a step that drafts.
    eager, clamped, extended : bool (max_batch_tokens + 1,)
        Where M is beyond the capture limit; eager but below the first eager point; outside the
        measured table.
    extended_requests : bool (max_requests + 1,)
        Where R is outside the measured draft or request table.
    """

    overhead_ns: int
    verify_ns: NDArray[np.int64]
    draft_ns: NDArray[np.int64]
    request_ns: NDArray[np.int64]
    context_ns_per_kv_token: float
    draft_context_ns_per_kv_token: float
    eager: NDArray[np.bool_]
    clamped: NDArray[np.bool_]
    extended: NDArray[np.bool_]
    extended_requests: NDArray[np.bool_]

    def step_ns(
        self,
        num_requests: ArrayLike,
        batch_tokens: ArrayLike,
        kv_tokens_read: ArrayLike = 0,
        drafting_requests: ArrayLike = 0,
        draft_len: ArrayLike = 0,
    ) -> NDArray[np.int64]:
        """Step time in ns, vectorised; -1 where the verify table does not reach."""
        drafting_requests, draft_len = np.asarray(drafting_requests), np.asarray(draft_len)
        drafting = (drafting_requests > 0) & (draft_len > 0)
        per_kv = self.context_ns_per_kv_token + drafting * self.draft_context_ns_per_kv_token
        context = np.rint(per_kv * np.asarray(kv_tokens_read)).astype(np.int64)
        verify = self.verify_ns[np.asarray(batch_tokens)]
        step = self.overhead_ns + self.draft_ns[drafting_requests, draft_len] + verify + context
        step = step + self.request_ns[np.asarray(num_requests)]
        return np.where(verify == OUT_OF_RANGE, OUT_OF_RANGE, step)

    def monotone(self) -> CostTables:
        """Belief in which more tokens never cost less: vLLM's `np.maximum.accumulate`."""
        risen = np.maximum.accumulate(self.verify_ns)
        return replace(self, verify_ns=self._where_valid(risen))

    def flat(self) -> CostTables:
        """Belief in which tokens are free: SGLang without a table, so that everything is verified.

        Every batch costs what the smallest one does, hence trimming never pays.
        """
        valid = np.flatnonzero(self.verify_ns[1:] != OUT_OF_RANGE) + 1
        level = np.full_like(self.verify_ns, self.verify_ns[valid[0]] if len(valid) else 0)
        level[0] = 0
        return replace(self, verify_ns=self._where_valid(level))

    def at_context(self, kv_tokens: int) -> CostTables:
        """Belief of a table measured with `kv_tokens` per request: their cost is part of verify[M].

        As vLLM builds its dummy steps: M tokens are those of min(M, max_requests) requests.
        """
        requests = np.minimum(np.arange(len(self.verify_ns)), len(self.request_ns) - 1)
        own = np.rint(self.context_ns_per_kv_token * kv_tokens * requests).astype(np.int64)
        return replace(self, verify_ns=self._where_valid(self.verify_ns + own))

    def without_draft(self) -> CostTables:
        """Belief in which drafting is free: SPS(B) from the verify table alone."""
        free = np.zeros_like(self.draft_ns)
        return replace(self, draft_ns=free, draft_context_ns_per_kv_token=0.0)

    def _where_valid(self, verify_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(self.verify_ns == OUT_OF_RANGE, OUT_OF_RANGE, verify_ns)


def dense_tables(
    profile: EngineProfile,
    max_draft_len: int,
    max_requests: int,
    max_batch_tokens: int,
    extend: bool,
) -> CostTables:
    """Evaluate a profile at every batch size, number of requests and draft length."""
    tokens = np.arange(max_batch_tokens + 1)
    requests = np.arange(max_requests + 1)
    lengths = np.arange(max_draft_len + 1)
    outside = profile.outside_verify(tokens)
    verify_ns = to_ns(profile.verify_ms(tokens, extend=True))
    limit = profile.capture_limit
    return CostTables(
        overhead_ns=int(to_ns(profile.overhead_ms)),
        verify_ns=verify_ns if extend else np.where(outside, OUT_OF_RANGE, verify_ns),
        draft_ns=to_ns(profile.draft_ms(requests[:, None], lengths[None, :], extend)),
        request_ns=to_ns(profile.request_ms(requests, extend)),
        context_ns_per_kv_token=profile.context_ms_per_kv_token * NS_PER_MS,
        draft_context_ns_per_kv_token=profile.draft_context_ms_per_kv_token * NS_PER_MS,
        eager=tokens > limit if limit is not None else np.zeros(len(tokens), dtype=bool),
        clamped=profile.clamped(tokens),
        extended=outside,
        extended_requests=profile.outside_requests(requests, max_draft_len),
    )
