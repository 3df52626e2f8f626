"""What a step of the engine reports, and the watch that times its parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dspark_sim.model.engine.schedule import FinishReason


@dataclass(frozen=True)
class Output:
    """New tokens of one request, and why it ended if it did."""

    id: int
    tokens: list[int]
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class StepReport:
    """One step: its times in ns, which add up to `step_ns`, and its counts.

    Attributes
    ----------
    start_ns : int
        Since the engine's start.
    host_ns : int
        Scheduling, assembling the batch, book-keeping.
    draft_ns : int
        The drafter's passes, with drawing and confidences.
    policy_ns : int
        Building the view and asking the policy.
    verify_ns : int
        The target pass over all tokens of the batch, with logits where they are needed.
    sample_ns : int
        Drawing from the target, accepting and rejecting.
    extend_ns : int
        Writing the committed tokens into the drafter's context.
    num_requests, prefill_requests : int
        R, requests that decode, and those whose prompt is being computed.
    drafting_requests, draft_len : int
        Requests that drafted, and the longest draft.
    draft_tokens, verify_tokens, accepted_tokens : int
        Summed over requests; accepted among the verified, not cut by a request's end.
    prefill_tokens, batch_tokens, kv_tokens_read : int
        M = batch_tokens = Σ(1 + verify_len) + prefill tokens.
    output_tokens : int
        Tokens emitted, first tokens of prompts included.
    num_running, num_waiting : int
        Requests in slots, and those left in the queue.
    accepted : tuple of int
        Of every decoding request.
    outputs : tuple of Output
    """

    start_ns: int
    host_ns: int
    draft_ns: int
    policy_ns: int
    verify_ns: int
    sample_ns: int
    extend_ns: int
    num_requests: int
    prefill_requests: int
    drafting_requests: int
    draft_len: int
    draft_tokens: int
    verify_tokens: int
    prefill_tokens: int
    batch_tokens: int
    kv_tokens_read: int
    num_running: int
    num_waiting: int
    accepted: tuple[int, ...]
    outputs: tuple[Output, ...]

    @property
    def step_ns(self) -> int:
        """Wall time of the whole step."""
        parts = self.host_ns + self.draft_ns + self.policy_ns + self.verify_ns
        return parts + self.sample_ns + self.extend_ns

    @property
    def end_ns(self) -> int:
        """When the step ended, since the engine's start."""
        return self.start_ns + self.step_ns

    @property
    def accepted_tokens(self) -> int:
        """Draft tokens accepted in the step."""
        return sum(self.accepted)

    @property
    def output_tokens(self) -> int:
        """Tokens emitted in the step."""
        return sum(len(output.tokens) for output in self.outputs)

    @property
    def verify_budget(self) -> float:
        """Tokens verified per request, anchor included (arXiv 2607.05147, Fig. 8)."""
        return 1.0 + self.verify_tokens / self.num_requests if self.num_requests else float("nan")


class StepWatch:
    """Splits a step into parts; a device is waited for at every lap."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.parts = dict.fromkeys(("host", "draft", "policy", "verify", "sample", "extend"), 0)
        self.start_ns = self._last = self._now()

    def lap(self, part: str) -> int:
        """Count what passed since the last lap to a part; return the time now."""
        now = self._now()
        self.parts[part] += now - self._last
        self._last = now
        return now

    def _now(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns()
