"""Record a drafter against a response: accepted length and confidences at every output position.

At temperature above 0 the outcome is coupled to the recorded response y, a target sample. Had
speculation produced y, the token y_q was the accepted draft with probability
min(1, p_d(y_q) / p_t(y_q)); so that is the acceptance test, with one uniform number per absolute
output position whatever block tests it. The first rejected draft comes from norm((p_d − p_t)+) and
the block is drafted freely from there, only for its confidences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dspark_sim.model.drafters.base import Drafter, Prediction, all_features
from dspark_sim.model.sampling import (
    ACCEPT,
    DRAFT,
    block_counter,
    distribution,
    draw,
    residual,
    uniforms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dspark_sim.model.generate import Decoding
    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class Response:
    """A prompt and the target's answer to it; positions up to len(answer) − γ can be recorded."""

    request_id: str
    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass
class Trail:
    """Blocks (A,) being drafted along y: which are still accepted, and how far."""

    alive: Tensor
    accepted: Tensor

    @classmethod
    def start(cls, blocks: int, device: torch.device) -> Trail:
        """Return A fresh blocks."""
        return cls(
            torch.ones(blocks, dtype=torch.bool, device=device),
            torch.zeros(blocks, dtype=torch.long, device=device),
        )

    def advance(
        self, draft: Tensor, target: Tensor, along: Tensor, luck: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Test one draft position and return the drafted token x_k (A,).

        Parameters
        ----------
        draft, target
            p_d and p_t (A, V) at this position; p_t is used only where the block is alive.
        along
            (A,) the response's tokens y_q.
        luck
            Uniform numbers (A,): acceptance, keyed by absolute position, and the free draw.
        """
        p_d = draft.gather(-1, along[:, None]).squeeze(-1).double()
        p_t = target.gather(-1, along[:, None]).squeeze(-1).double()
        passed = self.alive & (luck[0] * p_t < p_d)
        rejected = self.alive & ~passed
        source = torch.where(rejected[:, None], residual(draft, target), draft)
        self.accepted += passed
        self.alive = passed
        return torch.where(passed, along, draw(source, luck[1]))


@dataclass(frozen=True)
class Reading:
    """What one teacher-forced pass of the target over a prompt and its answer gives.

    tokens (S,), features (1, S, F); target (W, V): p_t after the prompt's last token and after
    every token of the answer, W = len(answer) + 1.
    """

    prompt: int
    tokens: Tensor
    features: Tensor
    target: Tensor


@torch.no_grad()
def read_response(model: Transformer, response: Response, c: Decoding) -> Reading:
    """Run the target over a response once; that serves all its positions and every drafter."""
    device = model.embedding.weight.device
    prompt = len(response.prompt)
    tokens = torch.tensor([*response.prompt, *response.answer], device=device)
    output = model(tokens[None])
    target = distribution(model.logits(output.hidden[0, prompt - 1 :]), c.temperature, c.top_p)
    return Reading(prompt, tokens, all_features(output), target)


@torch.no_grad()
def record_response(
    drafter: Drafter, reading: Reading, c: Decoding, request: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return accepted (n,) and confidence (n, γ) at output positions 0 .. n − 1.

    n = len(answer) − γ + 1, so that every block lies within the answer. `request` keys the luck.
    """
    tokens, gamma = reading.tokens, drafter.gamma
    blocks = len(tokens) - reading.prompt - gamma + 1
    following, length = torch.roll(tokens, -1)[None], torch.tensor([len(tokens)])
    context = drafter.new_context(reading.features, following, length.to(tokens.device))
    starts = torch.arange(blocks, device=tokens.device)
    positions = reading.prompt - 1 + starts
    block = drafter.begin(context, tokens[positions][None], positions[None])
    trail, previous, confidence = Trail.start(blocks, tokens.device), tokens[positions], []
    for k in range(gamma):
        prediction: Prediction = drafter.step(block, previous[None])
        confidence.append(drafter.confidence(prediction, c.temperature)[0])
        p_d = drafter.full(distribution(prediction.logits[0], c.temperature, c.top_p))
        name = torch.full_like(starts, request)
        luck = (
            uniforms(c.seed, name, starts + k, ACCEPT),
            uniforms(c.seed, name, block_counter(starts, k), DRAFT),
        )
        along = tokens[positions + k + 1]
        previous = trail.advance(p_d, reading.target[starts + k], along, luck)
    return trail.accepted.cpu().numpy(), torch.stack(confidence, 1).float().cpu().numpy()


def record(
    model: Transformer,
    drafters: Mapping[str, Drafter],
    responses: Sequence[Response],
    c: Decoding,
    *,
    first: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, pd.DataFrame]:
    """Return each drafter's frame: request_id, position, accepted, confidence, category.

    Luck hangs on a response's number, counted from `first`.
    """
    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in drafters}
    for number, response in enumerate(responses, first):
        reading = read_response(model, response, c)
        for name, drafter in drafters.items():
            accepted, confidence = record_response(drafter, reading, c, number)
            frames[name].append(_frame(response, accepted, confidence))
        progress(number + 1)
    return {name: pd.concat(rows, ignore_index=True) for name, rows in frames.items()}


def _frame(response: Response, accepted: np.ndarray, confidence: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "request_id": response.request_id,
            "position": np.arange(len(accepted), dtype=np.int32),
            "accepted": accepted.astype(np.int16),
            "confidence": list(confidence.clip(0, 1).round(4)),
            "category": response.category,
        }
    )


def recording_metadata(
    model: Transformer, drafter: Drafter, name: str, c: Decoding, **more: Any
) -> dict[str, Any]:
    """Return what is kept with a recording: models, γ, temperature, and what else is given."""
    return {
        "target": model.config.name,
        "drafter": name,
        "num_speculative_tokens": drafter.gamma,
        "temperature": c.temperature,
        "top_p": c.top_p,
        "seed": c.seed,
        "origin": f"recorded: {name} against {model.config.name}, T = {c.temperature:g}",
        **more,
    }
