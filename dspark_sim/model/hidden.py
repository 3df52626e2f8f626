"""Cached hidden states of the target: features and final states on disk, never logits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sim.core import UserError, whole_file
from dspark_sim.model.drafters.base import all_features
from dspark_sim.model.generate import pad

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class HiddenCache:
    """N rows of at most T tokens with what the target made of them.

    tokens (N, T), lengths (N,), starts (N,): first position that anchors may stand at;
    features (N, T, F) float16 in a memory map; log_norm (N, T): the logarithm of the target's
    softmax denominator, so that a reduced vocabulary still has exact probabilities.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]
    features: NDArray[np.float16]
    log_norm: NDArray[np.float32]

    def rows(self, chosen: NDArray[np.int64], device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens, features (float32), log_norm, lengths of rows, cut to the longest."""
        width = int(self.lengths[chosen].max())
        order = np.argsort(chosen)
        features = np.empty((len(chosen), width, self.features.shape[2]), np.float16)
        features[order] = self.features[chosen[order], :width]
        return (
            torch.from_numpy(self.tokens[chosen, :width].astype(np.int64)).to(device),
            torch.from_numpy(features).to(device).float(),
            torch.from_numpy(self.log_norm[chosen, :width]).to(device),
            torch.from_numpy(self.lengths[chosen]).to(device),
        )


@torch.no_grad()
def write_hidden(
    folder: Path,
    model: Transformer,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    batch: int = 16,
    progress: Callable[[int], None] = lambda done: None,
) -> HiddenCache:
    """Run the target over token rows once and keep the hidden states in `folder`, whole or not."""
    count, width = len(rows), max(len(row) for row in rows)
    size = model.config.hidden_size * (1 + len(model.config.feature_layers))
    device = model.embedding.weight.device
    with whole_file(folder) as temporary:
        temporary.mkdir()
        features = np.lib.format.open_memmap(
            temporary / "features.npy", "w+", np.float16, (count, width, size)
        )
        tokens = np.zeros((count, width), np.int32)
        log_norm = np.zeros((count, width), np.float32)
        for first in range(0, count, batch):
            part = rows[first : first + batch]
            padded, _ = pad(part, device)
            output = model(padded)
            where = np.s_[first : first + len(part), : padded.shape[1]]
            features[where] = all_features(output).half().cpu().numpy()
            log_norm[where] = model.logits(output.hidden).float().logsumexp(-1).cpu().numpy()
            tokens[where] = padded.cpu().numpy()
            progress(first + len(part))
        features.flush()
        np.savez(
            temporary / "rows.npz",
            tokens=tokens,
            log_norm=log_norm,
            lengths=[len(row) for row in rows],
            starts=list(starts),
        )
        (temporary / "about.json").write_text(json.dumps({"model": model.config.name}))
    return read_hidden(folder)


def read_hidden(folder: Path) -> HiddenCache:
    """Open what `write_hidden` wrote; features stay on disk."""
    if not (folder / "rows.npz").is_file():
        raise UserError(f"{folder}: no cached hidden states (rows.npz and features.npy) here")
    with np.load(folder / "rows.npz") as data:
        parts = {name: data[name] for name in ("tokens", "lengths", "starts", "log_norm")}
    features = np.load(folder / "features.npy", mmap_mode="r")
    return HiddenCache(features=features, **parts)
