"""How well a drafter guesses a target: accepted length and conditional acceptance by domain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.acceptance import ratio_with_error
from dspark_sim.core import UserError
from dspark_sim.model.corpus import load_documents, split
from dspark_sim.model.generate import Decoding
from dspark_sim.model.policy_lengths import policy_lengths
from dspark_sim.model.responses import prompts as held_out_prompts
from dspark_sim.model.speculate import StepRecord, VerifyLengths, speculate
from dspark_sim.model.weights import chat_format, load_drafter, load_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class Acceptance:
    """What real speculation came to in one domain.

    acceptance_length: tokens per request and step, bonus included (Table 1's form), with the
    standard error over requests; conditional (γ,): share of rounds that accept position k among
    those that accepted all before it (Fig. 2's form); rounds: draft-verify rounds behind it.
    """

    domain: str
    acceptance_length: float
    standard_error: float
    conditional: tuple[float, ...]
    rounds: int


def acceptance(
    records: Iterable[StepRecord], gamma: int, domain: str = "", last_position: int | None = None
) -> Acceptance:
    """Summarise rounds; those that begin after output position `last_position` do not count."""
    kept = [r for r in records if last_position is None or r.position <= last_position]
    accepted = np.array([r.accepted for r in kept])
    reached = np.array([(accepted >= k).sum() for k in range(gamma + 1)], dtype=float)
    conditional = reached[1:] / np.maximum(reached[:-1], 1)
    requests = np.array([r.request for r in kept])
    length, error = ratio_with_error(accepted + 1.0, requests)
    return Acceptance(domain, length, error, tuple(conditional.tolist()), len(kept))


def evaluate(
    model: Transformer,
    drafter: Drafter,
    asked: Sequence[tuple[str, list[int]]],
    c: Decoding,
    verify_lengths: VerifyLengths | None = None,
) -> list[Acceptance]:
    """Speculate on (domain, prompt) pairs, all of a domain in one batch; one row per domain."""
    rows = []
    for domain in dict.fromkeys(name for name, _ in asked):
        texts = [ids for name, ids in asked if name == domain]
        rule = c if domain != "chat" else replace(c, stop=None)
        result = speculate(model, drafter, texts, rule, verify_lengths)
        rows.append(acceptance(result.records, drafter.gamma, domain))
    return rows


def evaluate_drafters(
    drafters: Sequence[str],
    target: str,
    policy: str | None = None,
    *,
    prompts: int = 40,
    tokens: int = 100,
    temperature: float = 1.0,
    corpora: Path | None = None,
    weights: Path | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a row per drafter and domain on held-out prompts of every domain.

    Columns: acceptance_length and its standard error, rounds, c1 .. cγ (conditional acceptance of
    what was verified). `policy` is fixed:K or threshold:TAU; the whole block by default.
    """
    if prompts < 1 or tokens < 2:
        what, least, got = ("prompts", 1, prompts) if prompts < 1 else ("tokens", 2, tokens)
        raise UserError(f"{what} must be {least} or more, got {got}")
    model, tokenizer = load_target(target, weights)
    trained = {name: load_drafter(name, model, weights) for name in drafters}
    rules = {
        name: None if policy is None else policy_lengths(policy, drafter.gamma)
        for name, drafter in trained.items()
    }
    form = chat_format(target)
    c = Decoding(tokens, temperature, seed=seed, stop=form.end)
    asked = held_out_prompts(split(load_documents(corpora))[1], tokenizer, form, prompts)
    rows = []
    for name, drafter in trained.items():
        for row in evaluate(model, drafter, asked, c, rules[name]):
            head = {"drafter": name, "domain": row.domain, "rounds": row.rounds}
            length = {"acceptance_length": row.acceptance_length, "se": row.standard_error}
            rates = {f"c{k}": rate for k, rate in enumerate(row.conditional, 1)}
            rows.append(head | length | rates)
    return pd.DataFrame(rows)
