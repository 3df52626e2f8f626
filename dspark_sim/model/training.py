"""Train any drafter on cached hidden states: one loop, one budget, resumable, CPU or CUDA."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sim.core import UserError
from dspark_sim.model.losses import Anchors, BlockLosses, block_losses
from dspark_sim.model.optimize import Optimizer, cosine, resume_state, save_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from dspark_sim.model.drafters.base import Drafter
    from dspark_sim.model.hidden import HiddenCache

LAST_POSITION_LOSS = 1  # an anchor needs at least one token after it


@dataclass(frozen=True)
class TrainConfig:
    """A drafter's budget: `rows` contexts a step, `anchors` blocks packed on each.

    The loss starts as plain cross entropy and reaches 0.1 CE + 0.9 TV after `blend` of the steps:
    total variation alone starts slowly.
    """

    steps: int = 1_000
    rows: int = 8
    anchors: int = 24
    muon_lr: float = 4e-3
    adam_lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    blend: float = 0.2
    ce: float = 0.1
    tv: float = 0.9
    confidence: float = 1.0
    seed: int = 0
    device: str = "cpu"
    bf16: bool = False
    save_every: int = 100

    def weights(self, step: int) -> tuple[float, float, float]:
        """Return the weights of CE, ‖p_d − p_t‖_1 and confidence at a step (eq. 12)."""
        done = min(1.0, step / max(1.0, self.blend * self.steps))
        return self.ce + (1 - done) * (1 - self.ce), done * self.tv, self.confidence


def choose_anchors(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return (R, count) anchor positions, drawn evenly from starts .. lengths − 2."""
    span = lengths - LAST_POSITION_LOSS - starts
    if (span <= 0).any():
        raise UserError("training row too short: an anchor needs a token after it")
    return starts[:, None] + (rng.random((len(starts), count)) * span[:, None]).astype(np.int64)


def training_rows(data: HiddenCache, c: TrainConfig, step: int) -> Anchors:
    """Return the blocks of one step; they depend on (seed, step) only, not on the drafter."""
    rng = np.random.default_rng((c.seed, step))
    chosen = rng.integers(0, len(data.lengths), c.rows)
    positions = choose_anchors(data.starts[chosen], data.lengths[chosen], c.anchors, rng)
    parts = data.rows(chosen, c.device)
    return Anchors(*parts, torch.from_numpy(positions).to(c.device))


def train_drafter(
    drafter: Drafter,
    data: HiddenCache,
    held_out: HiddenCache,
    c: TrainConfig,
    checkpoint: Path,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Drafter:
    """Train a drafter (target frozen); goes on from `checkpoint` and keeps it up to date.

    `progress` gets step, loss, blocks per second and the held-out acceptance rate c* by position.
    """
    drafter.to(c.device).train()
    opt = Optimizer(drafter, c.muon_lr, c.adam_lr, c.weight_decay)
    first = resume_state(checkpoint, drafter, opt)
    since, done = time.perf_counter(), first
    for step in range(first, c.steps):
        with torch.autocast(c.device, torch.bfloat16, enabled=c.bf16):
            losses = block_losses(drafter, training_rows(data, c, step))
        loss = losses.total(*c.weights(step))
        opt.step(loss, cosine(step, c.steps, c.warmup))
        if (step + 1) % c.save_every == 0 or step + 1 == c.steps:
            save_state(checkpoint, drafter, opt, step + 1, asdict(drafter.config))
            speed = (step + 1 - done) * c.rows * c.anchors / (time.perf_counter() - since)
            seen = {"step": step + 1, "loss": float(loss.detach()), "blocks_s": speed}
            progress(seen | held_out_rates(drafter, held_out, c))
            since, done = time.perf_counter(), step + 1
    return drafter.eval()


@torch.no_grad()
def held_out_rates(
    drafter: Drafter, data: HiddenCache, c: TrainConfig, batches: int = 8
) -> dict[str, Any]:
    """Return the mean acceptance rate c* by draft position, teacher-forced, and the BCE."""
    drafter.eval()
    sums: list[BlockLosses] = [
        block_losses(drafter, training_rows(data, c, 10**6 + index)) for index in range(batches)
    ]
    drafter.train()
    count = torch.stack([s.count for s in sums]).sum(0).clamp(min=1)
    rate = torch.stack([s.acceptance for s in sums]).sum(0) / count
    bce = torch.stack([s.confidence for s in sums]).sum(0) / count
    return {
        "acceptance": [round(x, 4) for x in rate.tolist()],
        "confidence_bce": round(float(bce.mean()), 4),
    }
