"""Judging drafts on a packed batch: what is accepted, and the token committed after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark_sim.model.sampling import ACCEPT, COMMIT, draw, residual
from dspark_sim.model.speculate import accept_rule

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.engine.drafting import Rows, SlotDraft


def judge_greedy(
    best: Tensor, first: Tensor, verify: Tensor, draft: SlotDraft | None
) -> tuple[Tensor, Tensor]:
    """Return accepted draft tokens and the committed token, (R,) each, at temperature 0.

    Parameters
    ----------
    best
        (n,) the target's choice after every token of the batch.
    first
        (R,) where each request's anchor stands in the batch; its drafts follow.
    verify
        (R,) draft tokens verified.
    draft
        The blocks; None where nothing is verified.
    """
    if draft is None:
        return torch.zeros_like(verify), best[first]
    columns, inside = _columns(draft, verify)
    at = first[:, None] + torch.minimum(columns, verify[:, None])
    accepted = _prefix((best[at] == draft.tokens) & inside)
    return accepted, best[first + accepted]


def judge_sampled(
    target: Tensor,
    first: Tensor,
    verify: Tensor,
    draft: SlotDraft | None,
    rows: Rows,
    drafter: Drafter | None,
) -> tuple[Tensor, Tensor]:
    """Return the same for tokens drawn from p_t, `target` (n, V); see `judge_greedy`.

    Acceptance with min(1, p_t / p_d), else a token from norm((p_t − p_d)+), as in
    `speculate.judge`: the output's law is the target's own.
    """
    if draft is None or drafter is None:
        return torch.zeros_like(verify), draw(target[first], rows.luck(1, COMMIT)[:, 0])
    assert draft.chance is not None
    assert draft.stack is not None
    columns, inside = _columns(draft, verify)
    at = first[:, None] + torch.minimum(columns, verify[:, None])
    width = len(columns)
    passed = accept_rule(
        target[at, draft.tokens].double(), draft.chance.double(), rows.luck(width, ACCEPT)
    )
    accepted = _prefix(passed & inside)
    here = torch.arange(len(verify), device=verify.device)
    p_next = target[first + accepted]
    q_next = drafter.full(draft.stack[here, accepted.clamp(max=width - 1)])
    rejected = (accepted < verify)[:, None]
    source = torch.where(rejected, residual(p_next, q_next), p_next)
    return accepted, draw(source, rows.luck(width + 1, COMMIT)[here, accepted])


def _columns(draft: SlotDraft, verify: Tensor) -> tuple[Tensor, Tensor]:
    columns = torch.arange(draft.tokens.shape[1], device=verify.device)
    return columns, columns < verify[:, None]


def _prefix(passed: Tensor) -> Tensor:
    """Return how many of (R, K) pass before the first that does not."""
    return passed.long().cumprod(1).sum(1)
