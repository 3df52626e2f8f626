"""Train a small verifier from scratch on text of three domains, resumable, on CPU or CUDA."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from dspark_sim.model.corpus import DOMAINS, Packed
from dspark_sim.model.optimize import Optimizer, cosine, resume_state, save_state
from dspark_sim.model.transformer import ModelConfig, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True)
class PretrainConfig:
    """How a verifier is trained: rows of `width` tokens, an equal share per domain."""

    steps: int = 1_000
    batch: int = 12
    width: int = 256
    muon_lr: float = 6e-3
    adam_lr: float = 4e-3
    warmup: int = 30
    weight_decay: float = 0.1
    seed: int = 0
    device: str = "cpu"
    bf16: bool = False
    save_every: int = 100
    evaluate_every: int = 200


def batch_rows(data: Mapping[str, Packed], c: PretrainConfig, step: int) -> Tensor:
    """Return the (batch, width + 1) token rows of one step; they depend on (seed, step) only."""
    rng = np.random.default_rng((c.seed, step))
    shares = np.array_split(np.arange(c.batch), len(DOMAINS))
    rows = [
        data[domain].rows(len(share), c.width + 1, rng)
        for domain, share in zip(DOMAINS, shares, strict=True)
    ]
    return torch.from_numpy(np.concatenate(rows))


def log_loss(model: Transformer, rows: Tensor, c: PretrainConfig) -> Tensor:
    """Return the mean next-token log loss, nats, of rows (batch, width + 1)."""
    with torch.autocast(c.device, torch.bfloat16, enabled=c.bf16):
        hidden = model(rows[:, :-1]).hidden
        logits = model.logits(hidden)
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(
    model: Transformer, held_out: Mapping[str, Packed], c: PretrainConfig
) -> dict[str, float]:
    """Return each domain's held-out log loss, nats per token."""
    rng = np.random.default_rng(1)
    model.eval()
    losses = {}
    for domain in DOMAINS:
        rows = torch.from_numpy(held_out[domain].rows(32, c.width + 1, rng)).to(c.device)
        losses[domain] = float(log_loss(model, rows, c))
    model.train()
    return losses


def pretrain(
    config: ModelConfig,
    c: PretrainConfig,
    training: Mapping[str, Packed],
    held_out: Mapping[str, Packed],
    checkpoint: Path,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Transformer:
    """Train a verifier; goes on from `checkpoint` where there is one and keeps it up to date."""
    torch.manual_seed(c.seed)
    model = Transformer(config).to(c.device)
    opt = Optimizer(model, c.muon_lr, c.adam_lr, c.weight_decay)
    first = resume_state(checkpoint, model, opt)
    since, done = time.perf_counter(), first
    for step in range(first, c.steps):
        loss = log_loss(model, batch_rows(training, c, step).to(c.device), c)
        opt.step(loss, cosine(step, c.steps, c.warmup))
        if (step + 1) % c.save_every == 0 or step + 1 == c.steps:
            save_state(checkpoint, model, opt, step + 1, asdict(config))
            speed = (step + 1 - done) * c.batch * c.width / (time.perf_counter() - since)
            row: dict[str, Any] = {"step": step + 1, "loss": float(loss.detach()), "tok_s": speed}
            if (step + 1) % c.evaluate_every == 0 or step + 1 == c.steps:
                row |= evaluate(model, held_out, c)
            progress(row)
            since, done = time.perf_counter(), step + 1
    return model
