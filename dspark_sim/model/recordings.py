"""Make a recording: the target answers held-out prompts, the drafter is tried at every position."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dspark_sim.acceptance import write_recording
from dspark_sim.core import UserError
from dspark_sim.model.corpus import DOMAINS, load_documents, split
from dspark_sim.model.generate import Decoding
from dspark_sim.model.record import Response, record, recording_metadata
from dspark_sim.model.responses import answer, prompts
from dspark_sim.model.weights import load_drafter, load_target

if TYPE_CHECKING:
    from pathlib import Path

    from dspark_sim.model.responses import Answered

_ASKED_PER_WANTED = 3  # an answer may end before it is long enough


def make_recording(
    path: Path,
    target: str,
    drafter: str,
    *,
    temperature: float = 1.0,
    responses: int = 100,
    positions: int = 64,
    corpora: Path | None = None,
    weights: Path | None = None,
    seed: int = 0,
) -> int:
    """Record `responses` answers per domain, `positions` output positions each; return the rows.

    Parameters
    ----------
    path
        Parquet file to write, whole or not at all.
    target, drafter
        Names of shipped weights, or of weights in the folder `weights`.
    corpora
        Folder of prompts (gsm8k_train.jsonl, codealpaca.json); without it, what packages carry.
    seed
        Of the answers and of the recording's luck.

    Raises
    ------
    UserError
        Unknown weights, or too few long answers in a domain.
    """
    model, tokenizer = load_target(target, weights)
    trained = load_drafter(drafter, model, weights)
    tokens = positions + trained.gamma - 1
    decoding = Decoding(tokens, temperature, seed=seed)
    held_out = split(load_documents(corpora))[1]
    asked = prompts(held_out, tokenizer, _ASKED_PER_WANTED * responses)
    with torch.inference_mode():
        answers = answer(model, asked, replace(decoding, max_tokens=tokens))
    chosen = [r for domain in DOMAINS for r in _responses(answers, domain, tokens, responses)]
    frame = record(model, trained, chosen, decoding)
    about = {"responses_per_domain": responses, "domains": list(DOMAINS)}
    write_recording(path, frame, recording_metadata(model, trained, drafter, decoding, **about))
    return len(frame)


def _responses(answers: list[Answered], domain: str, tokens: int, wanted: int) -> list[Response]:
    long = [a for a in answers if a.domain == domain and len(a.answer) >= tokens]
    if len(long) < wanted:
        raise UserError(
            f"only {len(long)} held-out answers of domain '{domain}' have {tokens} tokens, "
            f"{wanted} responses were asked for: ask for fewer or shorter ones"
        )
    return [
        Response(f"{domain}-{number:03d}", domain, kept.prompt, kept.answer[:tokens])
        for number, kept in enumerate(long[:wanted])
    ]
