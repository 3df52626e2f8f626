"""A small, real serving engine: continuous batching, drafting, verification, one step at a time.

A step is the simulator's (design: "The step, precisely"), taken for real: admit, draft, let the
policy choose verify lengths, one target pass over all decodes and prefill chunks, commit. A
request's tokens depend on its prompt and its luck alone, never on what else is in the batch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.model.engine.decision import Decider
from dspark_sim.model.engine.report import Output, StepReport, StepWatch
from dspark_sim.model.engine.runner import Pass, Runner, Verdict
from dspark_sim.model.engine.schedule import Limits, Request, Sampling, Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.engine.drafting import SlotDraft
    from dspark_sim.model.transformer import Transformer
    from dspark_sim.policies import Policy
    from dspark_sim.throughput import EngineProfile

_LAGS = 3
_WARM_UP_REQUESTS, _WARM_UP_STEPS = 2, 4


class Engine:
    """Target and drafter under one policy.

    Parameters
    ----------
    target, drafter
        Frozen models on one device. A policy that never drafts needs no drafter, and with one
        given it is not used.
    policy : str or Policy
        As everywhere; the oracle is refused. One that drafts K tokens, as `fixed:K`, has the
        drafter draw only these; a block drafter's parallel pass is over γ, as trained.
    limits : Limits
        Slots, tokens per step, tokens per request.
    sampling : Sampling
        How tokens are drawn unless a request says otherwise.
    seed : int
        Of all requests' luck.
    profile : EngineProfile, optional
        The step costs that the policy believes; `startup_profile` measures them.
    """

    def __init__(
        self,
        target: Transformer,
        drafter: Drafter | None = None,
        policy: str | Policy = "none",
        limits: Limits | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        profile: EngineProfile | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.sampling = sampling or Sampling()
        longest = 0 if drafter is None else drafter.gamma
        self._decider = Decider(policy, longest, self.limits, profile)
        self.gamma = self._decider.gamma
        self._scheduler = Scheduler(self.limits, self.gamma)
        self._runner = Runner(
            target,
            drafter if self.gamma else None,
            self.max_running,
            self.limits.max_model_len + self.gamma + 1,
            seed,
        )
        self._requests: dict[int, Request] = {}
        self._next_id, self._epoch_ns = 0, time.perf_counter_ns()

    @property
    def policy_name(self) -> str:
        """The policy as the user wrote it."""
        return self._decider.name

    @property
    def max_running(self) -> int:
        """Requests that run at once, at most: the slots that the token budget can fill."""
        return self._scheduler.max_running

    @property
    def running(self) -> Sequence[Request]:
        """Requests in slots, in order of admission."""
        return self._scheduler.running

    @property
    def num_running(self) -> int:
        """How many requests are in slots."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._scheduler.waiting)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._requests

    def now_ns(self) -> int:
        """Return the time since the engine's start."""
        return time.perf_counter_ns() - self._epoch_ns

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        sampling: Sampling | None = None,
        stop: int | None = None,
        name: int | None = None,
        arrival_ns: int | None = None,
        category: str = "",
    ) -> Request:
        """Put a request in the queue.

        Parameters
        ----------
        prompt
            Token ids.
        max_tokens
            The response ends there, or with the token `stop`.
        sampling
            The engine's own by default.
        name
            The number that its luck hangs on; its id, counted from 0, by default.
        arrival_ns
            Now by default.
        category
            Carried into the tables.
        """
        self.check(prompt, max_tokens)
        request = Request(
            id=self._next_id,
            name=self._next_id if name is None else name,
            prompt=list(prompt),
            max_tokens=max_tokens,
            sampling=sampling or self.sampling,
            stop=stop,
            arrival_ns=self.now_ns() if arrival_ns is None else arrival_ns,
            history=np.ones((_LAGS, self.gamma)),
            category=category,
        )
        self._next_id += 1
        self._requests[request.id] = request
        self._scheduler.waiting.append(request)
        return request

    def check(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Refuse a request that this engine can never serve."""
        vocabulary = self._runner.target.config.vocab_size
        if not prompt:
            raise UserError("the prompt is empty: at least one token is needed")
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise UserError(f"prompt tokens must lie in 0..{vocabulary - 1}")
        if max_tokens < 1:
            raise UserError(f"max_tokens must be 1 or more, got {max_tokens}")
        if len(prompt) + max_tokens > self.limits.max_model_len:
            raise UserError(
                f"a prompt of {len(prompt)} tokens and max_tokens = {max_tokens} exceed the "
                f"context length of {self.limits.max_model_len} tokens"
            )

    def abort(self, request_id: int) -> None:
        """Drop a request, wherever it is; nothing happens if it has ended."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.finish_reason = "abort"
            self._scheduler.leave(request)

    def warm_up(self) -> None:
        """Run a few requests through a step or two, so that later ones find everything compiled."""
        if not self.idle:
            raise UserError("an engine is warmed up before its first request")
        for _ in range(min(_WARM_UP_REQUESTS, self.max_running)):
            self.add([0], self.limits.max_model_len - 1, name=0)
        for _ in range(_WARM_UP_STEPS):
            self.step()
        for request_id in list(self._requests):
            self.abort(request_id)
        self._next_id, self._epoch_ns = 0, time.perf_counter_ns()

    def step(self) -> StepReport | None:
        """Take one step; None where there is nothing to do."""
        if self.idle:
            return None
        watch = StepWatch(self._runner.device)
        now_ns = watch.start_ns - self._epoch_ns
        plan = self._scheduler.plan(now_ns)
        kv_tokens_read, num_running = plan.kv_tokens_read, self.num_running
        watch.lap("host")
        draft_len = self._decider.draft_lengths(plan, now_ns)
        watch.lap("policy")
        draft = self._runner.draft(plan.decodes, draft_len, self._decider.wants_confidence)
        watch.lap("draft")
        verify, confidence = draft_len, self._confidence(draft, draft_len)
        if self.gamma and plan.decodes:
            verify = self._decider.verify_lengths(plan, now_ns, draft_len, confidence)
        watch.lap("policy")
        done = self._runner.verify(plan, draft, verify)
        watch.lap("verify")
        verdict = self._runner.judge(done, draft)
        watch.lap("sample")
        self._runner.extend(done, verdict)
        end_ns = watch.lap("extend") - self._epoch_ns
        self._note(done, verdict, draft_len, confidence)
        outputs = self._commit(done, verdict, end_ns)
        watch.lap("host")
        return StepReport(
            start_ns=now_ns,
            **{f"{part}_ns": spent for part, spent in watch.parts.items()},
            num_requests=len(plan.decodes),
            prefill_requests=len(plan.chunks),
            drafting_requests=int((draft_len > 0).sum()),
            draft_len=int(draft_len.max(initial=0)),
            draft_tokens=int(draft_len.sum()),
            verify_tokens=int(verify.sum()),
            prefill_tokens=plan.prefill_tokens,
            batch_tokens=len(done.batch.tokens),
            kv_tokens_read=kv_tokens_read,
            num_running=num_running,
            num_waiting=plan.num_waiting,
            accepted=tuple(verdict.accepted),
            outputs=outputs,
        )

    def _confidence(
        self, draft: SlotDraft | None, draft_len: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return confidences (R, γ), 0 where nothing was drafted."""
        found = np.zeros((len(draft_len), self.gamma))
        if draft is not None:
            reported = draft.confidence.double().cpu().numpy()
            inside = np.arange(reported.shape[1]) < draft_len[:, None]
            found[:, : reported.shape[1]] = np.where(inside, reported, 0.0)
        return found

    def _note(
        self,
        done: Pass,
        verdict: Verdict,
        draft_len: NDArray[np.int64],
        confidence: NDArray[np.float64],
    ) -> None:
        """Remember of every decoding request what its policy may see in the next step."""
        survival = np.cumprod(confidence, axis=1)
        rows = zip(
            done.plan.decodes,
            draft_len.tolist(),
            done.verify.tolist(),
            verdict.accepted,
            strict=True,
        )
        for place, (request, drafted, verified, accepted) in enumerate(rows):
            request.steps += 1
            request.draft_tokens += drafted
            request.verify_tokens += verified
            request.accepted_tokens += accepted
            request.last_verify_len, request.last_accepted = verified, accepted
            if drafted > 0:
                request.history = np.stack([survival[place], *request.history[:-1]])

    def _commit(self, done: Pass, verdict: Verdict, now_ns: int) -> tuple[Output, ...]:
        """Advance every request of the step; those that are finished leave."""
        outputs = []
        rows = zip(
            done.plan.decodes, done.pieces, verdict.accepted, verdict.committed, strict=False
        )
        for request, piece, accepted, token in rows:
            request.computed += 1 + accepted
            new = request.commit([*piece.tokens[1 : 1 + accepted], token], now_ns)
            outputs.append(Output(request.id, new, request.finish_reason))
        opening = iter(verdict.opening)
        for chunk in done.plan.chunks:
            chunk.request.computed = chunk.end
            if chunk.is_last:
                new = chunk.request.commit([next(opening)], now_ns)
                outputs.append(Output(chunk.request.id, new, chunk.request.finish_reason))
        for output in outputs:
            if output.finish_reason is not None:
                self._scheduler.leave(self._requests.pop(output.id))
        return tuple(outputs)
