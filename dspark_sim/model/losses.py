"""What drafters are trained on: total variation, cross entropy and confidence (eqs. 8-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_sim.model.drafters.base import Drafter, Prediction


@dataclass(frozen=True)
class Anchors:
    """Blocks to train on: rows tokens (R, T), features (R, T, F), log_norm (R, T), lengths (R,).

    `positions` (R, A) are the anchors' places in their rows.
    """

    tokens: Tensor
    features: Tensor
    log_norm: Tensor
    lengths: Tensor
    positions: Tensor


@dataclass(frozen=True)
class BlockLosses:
    """Sums over blocks per draft position, (γ,) each; `count` is the number of valid blocks."""

    cross_entropy: Tensor
    variation: Tensor  # ‖p_d − p_t‖_1
    confidence: Tensor
    acceptance: Tensor  # c*, without gradient
    count: Tensor

    def total(self, ce: float = 0.1, tv: float = 0.9, confidence: float = 1.0) -> Tensor:
        """Return the weighted loss (eq. 12), position weights w_k = exp(−(k − 1)/γ) (eq. 9)."""
        gamma = len(self.count)
        weights = torch.exp(-torch.arange(gamma, device=self.count.device) / gamma)
        parts = ce * self.cross_entropy + tv * self.variation + confidence * self.confidence
        return (weights * parts / self.count.clamp(min=1)).sum() / weights.sum()


def acceptance_rate(draft: Tensor, target: Tensor) -> Tensor:
    """Return c* = 1 − ½‖p_d − p_t‖_1 = Σ_v min(p_d, p_t) (…) of distributions (…, V') (eq. 8).

    Over a reduced vocabulary the sum of minima is still exact: outside it p_d is zero.
    """
    return torch.minimum(draft, target).sum(-1)


def target_probabilities(drafter: Drafter, rows: Anchors, where: Tensor) -> Tensor:
    """Return p_t (R, A, V') after positions `where` (R, A), from cached final hidden states."""
    size = drafter.target.hidden_size
    index = where[..., None].expand(-1, -1, size)
    logits = drafter.unembed(rows.features[..., -size:].gather(1, index)).float()
    if drafter.draft_ids is None:
        return logits.softmax(-1)
    return (logits - rows.log_norm.gather(1, where)[..., None]).exp()


def block_losses(drafter: Drafter, rows: Anchors) -> BlockLosses:
    """Run γ teacher-forced steps of every block; only the drafter gets gradients."""
    last = rows.tokens.shape[1] - 1
    following = torch.roll(rows.tokens, -1, 1)
    context = drafter.new_context(rows.features, following, rows.lengths)
    previous = rows.tokens.gather(1, rows.positions)
    block = drafter.begin(context, previous, rows.positions)
    columns = []
    for k in range(1, drafter.gamma + 1):
        prediction = drafter.step(block, previous)
        valid = rows.positions + k < rows.lengths[:, None]
        with torch.no_grad(), torch.autocast(rows.tokens.device.type, enabled=False):
            where = (rows.positions + k - 1).clamp(max=last)
            target = target_probabilities(drafter, rows, where)
        previous = rows.tokens.gather(1, (rows.positions + k).clamp(max=last))
        columns.append(_position(drafter, prediction, target, previous, valid))
    return BlockLosses(*(torch.stack(column) for column in zip(*columns, strict=True)))


def _position(
    drafter: Drafter, prediction: Prediction, target: Tensor, labels: Tensor, valid: Tensor
) -> tuple[Tensor, ...]:
    """Return summed CE, ‖p_d − p_t‖_1, BCE, c* and count of one draft position."""
    log_p = prediction.logits.float().log_softmax(-1)
    p = log_p.exp()
    rate = acceptance_rate(p.detach(), target)
    outside = 1 - target.sum(-1) if drafter.draft_ids is not None else 0.0
    variation = (p - target).abs().sum(-1) + outside
    entropy = _cross_entropy(drafter, log_p, labels)
    bce = torch.zeros_like(rate)
    if prediction.confidence_logit is not None:
        bce = F.binary_cross_entropy_with_logits(
            prediction.confidence_logit.float(), rate.clamp(0, 1), reduction="none"
        )
    return tuple((term * valid).sum() for term in (entropy, variation, bce, rate, valid.float()))


def _cross_entropy(drafter: Drafter, log_p: Tensor, labels: Tensor) -> Tensor:
    if drafter.draft_ids is None:
        return -log_p.gather(-1, labels[..., None]).squeeze(-1)
    place = torch.searchsorted(drafter.sorted_ids, labels).clamp(max=len(drafter.sorted_ids) - 1)
    known = drafter.sorted_ids[place] == labels
    index = drafter.sorted_place[place]
    return torch.where(known, -log_p.gather(-1, index[..., None]).squeeze(-1), 0.0)
