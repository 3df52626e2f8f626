"""Asking a policy: the engine's requests as a scheduler knows them, and checked answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import NS_PER_S, UserError
from dspark_sim.policies import (
    BelievedCost,
    DraftView,
    KernelPolicy,
    Policy,
    SchedulerView,
    load_policy,
    policy_draft_len,
)
from dspark_sim.policies.kernel_policy import FIXED, K_TABLE, RATIO, TETRIS, THRESHOLD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dspark_sim.model.engine.schedule import Limits, Plan, Request
    from dspark_sim.throughput import CostTables, EngineProfile

    Ints = NDArray[np.int64]

_COST_FREE = (FIXED, THRESHOLD, K_TABLE, RATIO, TETRIS)


class Decider:
    """One policy with what it believes about costs.

    Parameters
    ----------
    policy
        A policy or its name.
    gamma
        Longest draft of the drafter, 0 without one.
    limits
        The engine's; they size the cost tables.
    profile
        Believed step costs, extended beyond what was measured. Without one every step costs the
        same, which is enough for rules that look at no costs.
    """

    def __init__(
        self, policy: str | Policy, gamma: int, limits: Limits, profile: EngineProfile | None
    ) -> None:
        self.policy, self.name = checked_policy(policy, gamma)
        self.gamma = policy_draft_len(self.policy, gamma)
        kernel = self.policy if isinstance(self.policy, KernelPolicy) else None
        if kernel is not None and profile is None and _reads_costs(kernel):
            raise UserError(f"policy '{self.name}' needs step costs: give an engine profile")
        self.wants_confidence = bool(getattr(self.policy, "needs_confidence", True))
        self._costs = (
            None if profile is None else _believed(profile, self.policy, self.gamma, limits)
        )
        self._free = np.ones(limits.max_num_batched_tokens + 1, np.int64)
        self._slots = limits.max_running(self.gamma)

    def draft_lengths(self, plan: Plan, now_ns: int) -> Ints:
        """Return how many tokens each decoding request drafts (R,), in the plan's order."""
        ask = getattr(self.policy, "draft_lengths", None)
        whole = np.full(len(plan.decodes), self.gamma, np.int64)
        if ask is None or self.gamma == 0 or not plan.decodes:
            return whole
        order, inverse = _by_admission(plan.decodes)
        return self._checked(ask(self._view(plan, order, now_ns)), whole, "draft_lengths")[inverse]

    def verify_lengths(
        self, plan: Plan, now_ns: int, draft_len: Ints, confidence: NDArray[np.float64]
    ) -> Ints:
        """Return verify_len (R,) for drafts of these lengths and confidences (R, γ)."""
        order, inverse = _by_admission(plan.decodes)
        view = SchedulerView(
            **vars(self._view(plan, order, now_ns)),
            draft_len=draft_len[order],
            confidence=confidence[order],
        )
        answer = self.policy.verify_lengths(view)
        return self._checked(answer, view.draft_len, "verify_lengths")[inverse]

    def _view(self, plan: Plan, order: Ints, now_ns: int) -> DraftView:
        rows = [plan.decodes[place] for place in order]
        return DraftView(
            time_s=now_ns / NS_PER_S,
            request=np.array([r.id for r in rows]),
            context_tokens=np.array([r.context_tokens for r in rows]),
            output_tokens=np.array([len(r.tokens) for r in rows]),
            decode_steps=np.array([r.steps for r in rows]),
            last_verify_len=np.array([r.last_verify_len for r in rows]),
            last_accepted=np.array([r.last_accepted for r in rows]),
            history=np.stack([r.history for r in rows]),
            prefill_tokens=plan.prefill_tokens,
            num_sampling=plan.num_sampling,
            num_waiting=plan.num_waiting,
            cost=self._cost(len(rows) + len(plan.chunks)),
            max_draft_len=self.gamma,
        )

    def _cost(self, requests: int) -> BelievedCost:
        costs = self._costs
        if costs is None:
            nothing = np.zeros((self._slots + 1, self.gamma + 1), np.int64)
            return BelievedCost(self._free, nothing, 0)
        fixed_ns = costs.overhead_ns + int(costs.request_ns[requests])
        return BelievedCost(costs.verify_ns, costs.draft_ns, fixed_ns)

    def _checked(self, answer: Any, limit: Ints, method: str) -> Ints:
        lengths = np.asarray(answer)
        if lengths.shape != limit.shape or not np.issubdtype(lengths.dtype, np.integer):
            raise UserError(
                f"policy '{self.name}': {method} must return {len(limit)} whole numbers, one per "
                f"request, got shape {lengths.shape} of {lengths.dtype}"
            )
        bad = np.flatnonzero((lengths < 0) | (lengths > limit))
        if len(bad):
            raise UserError(
                f"policy '{self.name}': {method} gave {lengths[bad[0]]} for request {bad[0]} of "
                f"the batch, allowed is 0 to {limit[bad[0]]}"
            )
        return lengths.astype(np.int64)


def checked_policy(policy: str | Policy, gamma: int) -> tuple[Policy, str]:
    """Return a policy that a drafter of γ tokens can follow, and its name; else UserError."""
    found = load_policy(policy, gamma) if isinstance(policy, str) else policy
    name = policy if isinstance(policy, str) else _name(policy)
    wanted = policy_draft_len(found, gamma)
    if wanted > gamma:
        drafts = f"the drafter drafts {gamma}" if gamma else "there is no drafter"
        raise UserError(f"policy '{name}' wants {wanted} draft tokens, but {drafts}")
    if isinstance(found, KernelPolicy) and found.knows_outcomes:
        raise UserError(f"policy '{name}' knows true outcomes, which a real engine does not")
    return found, name


def needs_costs(policy: str, gamma: int) -> bool:
    """Return whether a policy may look at step costs; a user's own is taken to."""
    return _reads_costs(load_policy(policy, gamma))


def _reads_costs(policy: Policy) -> bool:
    if not isinstance(policy, KernelPolicy):
        return True
    return policy.switches.fill or policy.rule not in _COST_FREE


def _name(policy: Policy) -> str:
    return str(getattr(policy, "name", type(policy).__name__))


def _believed(profile: EngineProfile, policy: Policy, gamma: int, limits: Limits) -> CostTables:
    """Return a profile's tables as the policy reads them, at the engine's own limits."""
    costs = profile.tables(
        gamma, limits.max_running(gamma), True, max_batch_tokens=limits.max_num_batched_tokens
    )
    return costs.monotone() if getattr(policy, "believes", "") == "monotone" else costs


def _by_admission(decodes: Sequence[Request]) -> tuple[Ints, Ints]:
    """Return the places of requests in order of admission, and what undoes that order."""
    order = np.array(sorted(range(len(decodes)), key=lambda place: decodes[place].id), np.int64)
    return order, np.argsort(order)
