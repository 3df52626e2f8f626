"""Make recordings: the target answers held-out prompts, drafters are tried at every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sim.acceptance import write_recording
from dspark_sim.acceptance.temperature import SequentialTemperatureScaling
from dspark_sim.core import UserError
from dspark_sim.model.corpus import DOMAINS, load_documents, split
from dspark_sim.model.generate import Decoding
from dspark_sim.model.record import Response, record, recording_metadata
from dspark_sim.model.responses import answer, prompts
from dspark_sim.model.weights import chat_format, load_drafter, load_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd
    from tokenizers import Tokenizer

    from dspark_sim.model.transformer import Transformer

    Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RecordingPlan:
    """What is recorded: answers per domain, positions per answer, and how answers are drawn.

    `calibration` further answers per domain, where there are any, are recorded only to fit the
    temperatures of Sequential Temperature Scaling, which go into the recording's metadata. `seed`
    is that of the answers and of the recording's luck. `corpora` is a folder of prompts
    (gsm8k_train.jsonl, codealpaca.json); without it, prompts come from what packages carry.
    """

    temperature: float = 1.0
    responses: int = 100
    positions: int = 64
    calibration: int = 20
    corpora: Path | None = None
    seed: int = 0


def make_recordings(
    paths: Mapping[str, Path],
    target: str,
    plan: RecordingPlan | None = None,
    *,
    weights: Path | None = None,
    progress: Progress = lambda row: None,
) -> dict[str, int]:
    """Record drafters on the same answers; return the number of rows of each recording.

    Parameters
    ----------
    paths
        Parquet file to write per drafter, whole or not at all.
    target
        Name of a shipped target, or of one in the folder `weights`.

    Raises
    ------
    UserError
        Unknown weights, or too few long answers in a domain.
    """
    plan = plan or RecordingPlan()
    for what in ("responses", "positions"):
        if getattr(plan, what) < 1:
            raise UserError(f"{what} must be 1 or more, got {getattr(plan, what)}")
    model, tokenizer = load_target(target, weights)
    drafters = {name: load_drafter(name, model, weights) for name in paths}
    longest = max(drafter.gamma for drafter in drafters.values())
    c = Decoding(
        plan.positions + longest - 1,
        plan.temperature,
        seed=plan.seed,
        stop=chat_format(target).end,
    )
    measured, fitted = held_out_responses(model, tokenizer, target, c, plan, progress)

    def told(done: int) -> None:
        progress({"stage": "recorded", "step": done, "steps": len(measured) + len(fitted)})

    about: dict[str, Any] = {"responses_per_domain": plan.responses, "domains": list(DOMAINS)}
    frames = record(model, drafters, measured, c, progress=told)
    scaled: dict[str, dict[str, Any]] = {name: {} for name in paths}
    if fitted:
        aside = record(model, drafters, fitted, c, first=len(measured), progress=told)
        scaled = {name: _temperatures(frame) for name, frame in aside.items()}
    for name, path in paths.items():
        metadata = recording_metadata(model, drafters[name], name, c, **about, **scaled[name])
        write_recording(path, frames[name], metadata)
    return {name: len(frame) for name, frame in frames.items()}


def held_out_responses(
    model: Transformer,
    tokenizer: Tokenizer,
    target: str,
    c: Decoding,
    plan: RecordingPlan,
    progress: Progress = lambda row: None,
) -> tuple[list[Response], list[Response]]:
    """Return long answers to held-out prompts of every domain: to measure on, and to fit on."""
    held_out = split(load_documents(plan.corpora))[1]
    asked = prompts(held_out, tokenizer, chat_format(target), len(held_out))
    wanted = plan.responses + plan.calibration
    measured, fitted = list[Response](), list[Response]()
    for domain in DOMAINS:
        mine = [index for index, (name, _) in enumerate(asked) if name == domain]
        long: list[Response] = []
        for first in range(0, len(mine), wanted):
            if len(long) >= wanted:
                break
            part = mine[first : first + wanted]
            with torch.inference_mode():
                answers = answer(model, [asked[i] for i in part], c, names=part)
            long += [
                Response(f"{domain}-{number:03d}", domain, a.prompt, a.answer)
                for number, a in enumerate(answers, first)
                if len(a.answer) == c.max_tokens
            ]
            progress({"stage": f"answers, {domain}", "step": len(long), "steps": wanted})
        _check(long, domain, c.max_tokens, plan.responses)
        measured += long[: plan.responses]
        fitted += long[plan.responses : wanted]
    return measured, fitted


def _check(long: list[Response], domain: str, tokens: int, wanted: int) -> None:
    if len(long) < wanted:
        raise UserError(
            f"only {len(long)} held-out answers of domain '{domain}' have {tokens} tokens, "
            f"{wanted} responses were asked for: ask for fewer or shorter ones"
        )


def _temperatures(frame: pd.DataFrame) -> dict[str, Any]:
    scaling = SequentialTemperatureScaling.fit(
        np.array(frame["confidence"].tolist()), frame["accepted"].to_numpy(np.int64)
    )
    return {
        "sts_temperatures": [round(t, 6) for t in scaling.temperatures],
        "sts_blocks": scaling.num_samples,
    }
