"""Drafters: what proposes the tokens that the verifier checks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dspark_sim.core import unknown_name
from dspark_sim.model.drafters.base import (
    Block,
    Context,
    Drafter,
    DrafterConfig,
    Prediction,
    all_features,
)
from dspark_sim.model.drafters.dflash import DFlash
from dspark_sim.model.drafters.dspark import DSpark
from dspark_sim.model.drafters.eagle3 import Eagle3
from dspark_sim.model.drafters.mtp1 import MTP1
from dspark_sim.model.drafters.ngram import NGram

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_sim.model.transformer import ModelConfig

__all__ = [
    "DRAFTERS",
    "Block",
    "Context",
    "Drafter",
    "DrafterConfig",
    "Prediction",
    "all_features",
    "build_drafter",
    "drafter_config",
]

_KINDS: dict[str, type[Drafter]] = {
    "dspark": DSpark,
    "dflash": DFlash,
    "eagle3": Eagle3,
    "mtp1": MTP1,
    "ngram": NGram,
}
DRAFTERS = {
    "dspark-markov": DrafterConfig("dspark", head="markov", confidence_head=True),
    "dspark-rnn": DrafterConfig("dspark", head="rnn", confidence_head=True),
    "dspark-markov-1layer": DrafterConfig(
        "dspark", head="markov", confidence_head=True, num_layers=1
    ),
    "dflash": DrafterConfig("dflash"),
    "eagle3": DrafterConfig("eagle3", num_layers=1),
    "mtp1": DrafterConfig("mtp1", num_layers=1, num_speculative_tokens=1),
    "ngram": DrafterConfig("ngram", num_layers=0),
}


def drafter_config(name: str, **changes: object) -> DrafterConfig:
    """Return a known drafter's configuration, with changes."""
    if name not in DRAFTERS:
        raise unknown_name("drafter", name, DRAFTERS)
    return replace(DRAFTERS[name], **changes)  # type: ignore[arg-type]


def build_drafter(config: DrafterConfig, target: ModelConfig, embedding: Tensor) -> Drafter:
    """Return a new drafter for a target of these sizes, on its embedding (V, d)."""
    return _KINDS[config.kind](config, target, embedding)
