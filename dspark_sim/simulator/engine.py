"""The discrete-event engine: SimPy keeps the time, a replica takes the steps.

A replica under a built-in rule advances in one kernel call until its records are full, its time
is up or nothing is left; under a user's policy it takes step by step, and asks the policy between
drafting and verifying. Both paths run the same kernels and give the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import simpy

from dspark_sim.core import NS_PER_S, RunError, UserError
from dspark_sim.policies import BelievedCost, DraftView, KernelPolicy, SchedulerView
from dspark_sim.simulator import state as s
from dspark_sim.simulator.admission import next_start
from dspark_sim.simulator.kernels import (
    advance,
    apply_rule,
    begin_step,
    believed_fixed_ns,
    draft,
    finish_step,
    plan_drafts,
    records_full,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from dspark_sim.acceptance.kernels import AcceptanceTables
    from dspark_sim.policies import Policy

    Ints = NDArray[np.int64]


class Replica:
    """One serving engine under one policy.

    Parameters
    ----------
    engine, acceptance, state
        Limits and true costs, outcomes, and the state before the first step.
    profile, policy_name : str
        Names of the profile behind the costs and of the policy, for messages.
    rule
        The policy's belief, and the kernel rule if it is a built-in one.
    policy
        The policy's own instance.
    stepwise : bool
        Take step by step even under a built-in rule (slower, same results).
    """

    def __init__(
        self,
        engine: s.Engine,
        acceptance: AcceptanceTables,
        rule: s.Rule,
        policy: Policy,
        state: s.State,
        profile: str,
        policy_name: str,
        stepwise: bool = False,
    ) -> None:
        self.engine, self.acceptance, self.rule, self.state = engine, acceptance, rule, state
        self.policy, self.profile, self.policy_name = policy, profile, policy_name
        self._macro = isinstance(policy, KernelPolicy) and not stepwise

    def serve(self, env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        """Take steps until no request is left: the SimPy process of this replica."""
        while True:
            status = self._advance(s.NEVER)
            if self.state.clock[s.NOW] > env.now:
                yield env.timeout(int(self.state.clock[s.NOW]) - env.now)
            if status == s.DONE:
                return

    def catch_up(self, until_ns: int) -> None:
        """Take every step that begins before `until_ns`; what was issued by then counts."""
        while next_start(self.state) < until_ns and self._advance(until_ns) != s.DONE:
            pass

    def _advance(self, until_ns: int) -> int:
        """Take some steps, one at least unless records are full; return why it went no further."""
        if self._macro:
            status = int(advance(self.engine, self.acceptance, self.rule, self.state, until_ns))
        else:
            status = self._step()
        if status == s.OUT_OF_RANGE:
            raise UserError(
                f"profile '{self.profile}' has no cost for a batch of "
                f"{self.state.clock[s.BAD_TOKENS]} tokens; measure it further or allow "
                "extension (--extend)"
            )
        if status == s.RECORDS_FULL:
            self.state = s.with_room(self.state, self.engine)
        return status

    def _step(self) -> int:
        engine, state, clock = self.engine, self.state, self.state.clock
        if records_full(engine, state):
            return s.RECORDS_FULL
        if begin_step(engine, state) == s.DONE:
            return s.DONE
        if clock[s.DECODES] > 0:
            self._plan()
            draft(self.acceptance, state, self.rule.want_confidence, self.rule.lag)
            self._decide()
        status = int(finish_step(engine, state))
        return s.HORIZON if status == s.DONE else status

    def _plan(self) -> None:
        plan_drafts(self.engine, self.rule, self.state)
        decide_drafts = getattr(self.policy, "draft_lengths", None)
        if decide_drafts is not None:
            num = self.state.clock[s.DECODES]
            gamma = np.full(num, self.engine.gamma)
            lengths = self._answer(decide_drafts(self._draft_view()), gamma, "draft_lengths")
            self.state.rows[s.ROW_DRAFT, :num] = lengths

    def _decide(self) -> None:
        num = int(self.state.clock[s.DECODES])
        if isinstance(self.policy, KernelPolicy) and self.policy.knows_outcomes:
            apply_rule(self.rule, self.state)
            return
        drafted = self.state.rows[s.ROW_DRAFT, :num]
        view = SchedulerView(
            **vars(self._draft_view(np.minimum(drafted, 1))),
            draft_len=drafted.copy(),
            confidence=self.state.confidence[:num, : self.engine.gamma].copy(),
        )
        answer = self.policy.verify_lengths(view)
        self.state.rows[s.ROW_VERIFY, :num] = self._answer(answer, drafted, "verify_lengths")

    def _answer(self, answer: object, limit: Ints, method: str) -> Ints:
        lengths = np.asarray(answer)
        name = self.policy_name
        if lengths.shape != limit.shape or not np.issubdtype(lengths.dtype, np.integer):
            raise UserError(
                f"policy '{name}': {method} must return {len(limit)} whole numbers, one per "
                f"request, got shape {lengths.shape} of {lengths.dtype}"
            )
        if (lengths < 0).any() or (lengths > limit).any():
            r = int(np.argmax((lengths < 0) | (lengths > limit)))
            raise UserError(
                f"policy '{name}': {method} gave {lengths[r]} for request {r} of the batch, "
                f"allowed is 0 to {limit[r]}"
            )
        return lengths.astype(np.int64)

    def _draft_view(self, drafted: Ints | int = 0) -> DraftView:
        """Return what is known before drafting; `drafted` (R,) says whose live draft is kept."""
        state, clock, rule = self.state, self.state.clock, self.rule
        num = int(clock[s.DECODES])
        slots = state.rows[s.ROW_SLOT, :num]
        request = state.slots[s.REQUEST, slots]
        newest = state.slots[s.HISTORY, slots] - drafted
        kept = (newest[:, np.newaxis] - np.arange(s.KEPT - 1)) % s.KEPT
        return DraftView(
            time_s=float(clock[s.NOW]) / NS_PER_S,
            request=request,
            context_tokens=state.requests[s.PROMPT, request] + state.requests[s.EMITTED, request],
            output_tokens=state.requests[s.EMITTED, request],
            decode_steps=state.requests[s.STEPS, request],
            last_verify_len=state.slots[s.LAST_VERIFY, slots],
            last_accepted=state.slots[s.LAST_ACCEPTED, slots],
            history=state.history[slots[:, np.newaxis], kept, : self.engine.gamma],
            prefill_tokens=int(clock[s.PREFILL_TOKENS]),
            num_sampling=int(clock[s.SAMPLING]),
            num_waiting=int(clock[s.VISIBLE] - clock[s.HEAD] + clock[s.STACKED]),
            cost=BelievedCost(rule.verify_ns, rule.draft_ns, int(believed_fixed_ns(rule, state))),
            max_draft_len=self.engine.gamma,
        )


def run(replica: Replica) -> None:
    """Run one replica whose requests are issued from the first arrival to the last token."""
    env = simpy.Environment(initial_time=0)
    env.process(replica.serve(env))
    env.run()


def check_finished(state: s.State) -> None:
    """Refuse a state in which a request has not ended: a mistake of ours."""
    left = state.requests[s.FINISH] < 0
    if left.any():
        raise RunError(f"{int(left.sum())} requests were left unfinished; please report this")
