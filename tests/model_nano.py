"""Nano models for the tests of the model room: random weights, built in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from dspark_sim.model.drafters import Drafter, build_drafter, drafter_config
from dspark_sim.model.transformer import Transformer, model_config

EVERY_DRAFTER = ("dspark-markov", "dspark-rnn", "dflash", "eagle3", "mtp1", "ngram")


def nano_target(vocab_size: int = 64, sharpness: float = 30.0, seed: int = 0) -> Transformer:
    """A random target; `sharpness` scales its embedding, so that its choices are not uniform."""
    torch.manual_seed(seed)
    target = Transformer(replace(model_config("nano"), vocab_size=vocab_size)).eval()
    target.embedding.weight.data *= sharpness
    return target


def nano_drafter(name: str, target: Transformer, seed: int = 1, **changes: object) -> Drafter:
    """A random drafter whose heads say something too."""
    torch.manual_seed(seed)
    if name not in {"mtp1"}:
        changes.setdefault("num_speculative_tokens", 4)
    config = drafter_config(name, rank=8, **changes)
    drafter = build_drafter(config, target.config, target.embedding.weight).eval()
    for parameter in drafter.parameters():
        if parameter.ndim == 2:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return drafter


def prompts(count: int, vocab_size: int = 64, seed: int = 0) -> list[list[int]]:
    """Random prompts of 3 to 9 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 10, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]
