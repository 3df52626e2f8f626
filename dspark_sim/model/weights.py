"""Trained weights on disk: one folder per target with its tokenizer and its drafters."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dspark_sim.core import UserError, unknown_name, whole_file
from dspark_sim.model import corpus, smollm2
from dspark_sim.model.drafters import Drafter, DrafterConfig, build_drafter, drafter_config
from dspark_sim.model.transformer import ModelConfig, Transformer

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from dspark_sim.model.corpus import ChatFormat

SMOLLM2 = "smollm2-135m"
TARGET_FILES = _TARGET, _TOKENIZER = "target.safetensors", "tokenizer.json"


def weights_dir() -> Path:
    """Return the folder of shipped weights."""
    return Path(__file__).parent / "weights"


def save_weights(
    path: Path, module: torch.nn.Module, config: Any, about: dict[str, Any] | None = None
) -> None:
    """Write a module's weights as float16, its configuration and what made it, whole or not."""
    state = {name: value.half().contiguous() for name, value in module.state_dict().items()}
    metadata = {"config": json.dumps(asdict(config)), "about": json.dumps(about or {})}
    with whole_file(path) as temporary:
        save_file(state, temporary, metadata)


def load_target(name: str, folder: Path | None = None) -> tuple[Transformer, Tokenizer]:
    """Return a frozen target and its tokenizer: `smollm2-135m`, or a folder of weights by name."""
    if name == SMOLLM2:
        return smollm2.load_smollm2()
    place = (folder or weights_dir()) / name
    if not (place / _TARGET).is_file():
        shipped = [path.parent.name for path in place.parent.glob(f"*/{_TARGET}")]
        raise unknown_name("target model", name, [SMOLLM2, *shipped])
    from tokenizers import Tokenizer

    state, metadata = _read(place / _TARGET)
    config = json.loads(metadata["config"])
    config["feature_layers"] = tuple(config["feature_layers"])
    model = Transformer(ModelConfig(**config))
    model.load_state_dict(state)
    tokenizer = Tokenizer.from_file(str(place / _TOKENIZER))
    return model.eval().requires_grad_(False), tokenizer


def chat_format(name: str) -> ChatFormat:
    """Return how a target is spoken to."""
    return smollm2.FORMAT if name == SMOLLM2 else corpus.FORMAT


def load_drafter(name: str, target: Transformer, folder: Path | None = None) -> Drafter:
    """Return a trained drafter of this target, by name; `ngram` needs no weights."""
    place = (folder or weights_dir()) / target.config.name
    if name == "ngram":
        config = drafter_config("ngram")
        return build_drafter(config, target.config, target.embedding.weight).eval()
    path = place / f"{name}.safetensors"
    if not path.is_file():
        trained = [p.stem for p in place.glob("*.safetensors") if p.name != _TARGET]
        raise unknown_name("drafter", name, ["ngram", *trained], f"target '{target.config.name}'")
    state, metadata = _read(path)
    row = json.loads(metadata["config"])
    row["draft_ids"] = None if row["draft_ids"] is None else tuple(row["draft_ids"])
    drafter = build_drafter(DrafterConfig(**row), target.config, target.embedding.weight)
    drafter.load_state_dict(state)
    return drafter.eval().requires_grad_(False)


def weights_about(path: Path) -> dict[str, Any]:
    """Return what a weights file says about its making."""
    return dict(json.loads(_read(path)[1]["about"]))


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key).float() for key in file.keys()}, file.metadata()  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as weights ({error})") from None
