"""Which requests run in a step: first come, first served, within slots and token budget.

The simulator's rules (`simulator/admission.py`): decoding requests count 1 + γ tokens each,
whatever they verify; prefills under way take the rest in order, then new ones are admitted.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dspark_sim.core import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_COLDEST, _HOTTEST = 1e-4, 100
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Limits:
    """What a step and a request may hold; the names are vLLM's.

    Attributes
    ----------
    max_num_seqs : int
        Requests that run at once: the slots.
    max_num_batched_tokens : int
        Tokens of one step: 1 + γ per decoding request, and prefill chunks.
    max_model_len : int
        Prompt and output of one request together.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int = 512

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 2 if name == "max_model_len" else 1
            if value < least:
                raise UserError(f"{name} must be {least} or more, got {value}")

    def max_running(self, gamma: int) -> int:
        """Return how many requests may run when each counts 1 + γ tokens."""
        found = min(self.max_num_seqs, self.max_num_batched_tokens // (1 + gamma))
        if found == 0:
            raise UserError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} cannot hold one request "
                f"with {gamma} draft tokens"
            )
        return found


@dataclass(frozen=True)
class Sampling:
    """How a request's tokens are drawn; temperature 0, or next to it, is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= _HOTTEST:
            raise UserError(f"temperature must lie in 0..{_HOTTEST}, got {self.temperature:g}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must lie above 0 and be at most 1, got {self.top_p:g}")
        if self.temperature < _COLDEST:
            object.__setattr__(self, "temperature", 0.0)


@dataclass(eq=False)
class Request:
    """One request from its arrival to its last token.

    `name` is the number that its luck hangs on. `computed` counts the positions whose keys and
    values are in the slot; the last output token, the anchor, is not yet. Token counts and
    `history` are as in `policies.DraftView`; times are ns since the engine's start, -1 before.
    """

    id: int
    name: int
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop: int | None
    arrival_ns: int
    history: NDArray[np.float64]
    category: str = ""
    slot: int = -1
    computed: int = 0
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    admitted_ns: int = -1
    first_token_ns: int = -1
    finish_ns: int = -1
    steps: int = 0
    draft_tokens: int = 0
    verify_tokens: int = 0
    accepted_tokens: int = 0
    last_verify_len: int = -1
    last_accepted: int = -1

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is in the slot."""
        return self.computed >= len(self.prompt)

    @property
    def context_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.prompt) + len(self.tokens)

    def rewind(self, count: int) -> None:
        """Forget all but the first output tokens, `count` of them, 1 or more."""
        del self.tokens[count:]
        self.computed = len(self.prompt) + count - 1

    def commit(self, tokens: list[int], now_ns: int) -> list[int]:
        """Take new tokens as far as the request goes; return those, and finish where it ends."""
        new = tokens[: self.max_tokens - len(self.tokens)]
        if self.stop in new:
            new = new[: new.index(self.stop) + 1]
            self.finish_reason = "stop"
        self.tokens += new
        if self.finish_reason is None and len(self.tokens) == self.max_tokens:
            self.finish_reason = "length"
        if self.first_token_ns < 0:
            self.first_token_ns = now_ns
        if self.finish_reason is not None:
            self.finish_ns = now_ns
        return new


@dataclass(frozen=True)
class Chunk:
    """`count` prompt tokens of a request, from position `start` on."""

    request: Request
    start: int
    count: int

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.count

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with it, so that the request's first token follows."""
        return self.end == len(self.request.prompt)


@dataclass(frozen=True)
class Plan:
    """Who does what in a step: decoding requests by slot, and prompt chunks."""

    decodes: list[Request]
    chunks: list[Chunk]
    num_waiting: int

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of the step."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def num_sampling(self) -> int:
        """Requests that emit a token in the step."""
        return len(self.decodes) + sum(chunk.is_last for chunk in self.chunks)

    @property
    def kv_tokens_read(self) -> int:
        """Positions that attention reads: every decode's context, every chunk up to its end."""
        decodes = sum(request.context_tokens for request in self.decodes)
        return decodes + sum(chunk.end for chunk in self.chunks)


class Scheduler:
    """The queue, the slots and the running requests in order of admission."""

    def __init__(self, limits: Limits, gamma: int) -> None:
        self.limits, self.gamma = limits, gamma
        self.max_running = limits.max_running(gamma)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free = list(range(self.max_running))

    def plan(self, now_ns: int) -> Plan:
        """Admit who fits and return the step."""
        decodes = [request for request in self.running if request.prefilled]
        prompts = [request for request in self.running if not request.prefilled]
        budget = self.limits.max_num_batched_tokens - len(decodes) * (1 + self.gamma)
        chunks = []
        while budget > 0:
            if prompts:
                request = prompts.pop(0)
            elif self.waiting and self._free:
                request = self._admit(now_ns)
            else:
                break
            count = min(budget, len(request.prompt) - request.computed)
            chunks.append(Chunk(request, request.computed, count))
            budget -= count
        decodes.sort(key=lambda request: request.slot)
        return Plan(decodes, chunks, len(self.waiting))

    def _admit(self, now_ns: int) -> Request:
        request = self.waiting.popleft()
        request.slot, request.admitted_ns = heapq.heappop(self._free), now_ns
        self.running.append(request)
        return request

    def leave(self, request: Request) -> None:
        """Take a request out of the queue, or out of its slot, which is free from now on."""
        if request.slot < 0:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            heapq.heappush(self._free, request.slot)
