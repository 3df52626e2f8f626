"""A nano target whose choices depend on the whole context: an error in the cache shows at once.

A plain random target with a tied embedding repeats its last token for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_nano import nano_target

if TYPE_CHECKING:
    from dspark_sim.model.transformer import Transformer


def lively_target(vocab_size: int = 64, sharpness: float = 3.0) -> Transformer:
    """A random target whose layers outweigh its embedding."""
    target = nano_target(vocab_size, sharpness)
    for parameter in target.layers.parameters():
        if parameter.ndim == 2:
            parameter.data *= 20
    return target.requires_grad_(False)
