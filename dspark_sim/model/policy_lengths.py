"""Verify lengths of real speculation by the simulator's own policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sim.core import UserError
from dspark_sim.policies import BelievedCost, SchedulerView, load_policy, policy_draft_len

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_sim.model.speculate import DraftView, VerifyLengths

_FREE = 1 << 14  # batch tokens; every one costs the same


def policy_lengths(spec: str, gamma: int) -> VerifyLengths:
    """Return how a policy that looks at no costs (`fixed:K`, `threshold:TAU`) verifies γ drafts.

    Blocks are drafted whole, so `fixed:3` verifies 3 of γ.
    """
    name = spec.partition(":")[0]
    if name not in ("fixed", "threshold"):
        raise UserError(
            f"policy '{spec}' needs step costs: real drafters are tried under fixed:K or "
            "threshold:TAU, others in a simulation of their recording"
        )
    policy = load_policy(spec, gamma)
    if policy_draft_len(policy, gamma) > gamma:
        raise UserError(f"policy '{spec}' verifies more than the {gamma} tokens that are drafted")

    def lengths(view: DraftView) -> Tensor:
        seen = scheduler_view(view, gamma)
        return torch.from_numpy(np.asarray(policy.verify_lengths(seen)))

    return lengths


def scheduler_view(view: DraftView, gamma: int) -> SchedulerView:
    """Return real drafts (R, γ) as a policy sees them, where every step costs the same."""
    confidence = view.confidence.double().cpu().numpy()
    num = len(confidence)
    zeros, unknown = np.zeros(num, np.int64), np.full(num, -1)
    return SchedulerView(
        time_s=0.0,
        request=view.requests.cpu().numpy(),
        context_tokens=zeros,
        output_tokens=view.positions.cpu().numpy(),
        decode_steps=zeros,
        last_verify_len=unknown,
        last_accepted=unknown,
        history=np.ones((num, 3, gamma)),
        prefill_tokens=0,
        num_sampling=num,
        num_waiting=0,
        cost=BelievedCost(np.ones(_FREE, np.int64), np.zeros((num + 1, gamma + 1), np.int64), 0),
        max_draft_len=gamma,
        draft_len=np.full(num, gamma),
        confidence=confidence,
    )
