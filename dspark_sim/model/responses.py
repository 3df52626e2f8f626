"""Answers that the target itself gives to prompts of three domains: what drafters learn from."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import whole_file
from dspark_sim.model.corpus import DOMAINS
from dspark_sim.model.generate import Decoding, generate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from dspark_sim.model.corpus import ChatFormat, Document
    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class Answered:
    """A prompt of a domain and the target's answer, as token ids."""

    domain: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def prompts(
    documents: Sequence[Document], tokenizer: Tokenizer, form: ChatFormat, per_domain: int
) -> list[tuple[str, list[int]]]:
    """Return (domain, token ids) of prompts, as many per domain, in the target's format."""
    return [
        (domain, ids)
        for domain in DOMAINS
        for _, ids in islice(_fitting(documents, domain, tokenizer, form, True), per_domain)
    ]


def references(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    form: ChatFormat,
    per_domain: int,
    skip: int = 0,
) -> list[Answered]:
    """Return prompts with the answers that the text itself gives, the first `skip` left out."""
    return [
        Answered(domain, tuple(ids), (*tokenizer.encode(document.turns[-1]).ids, form.end))
        for domain in DOMAINS
        for document, ids in islice(
            _fitting(documents, domain, tokenizer, form, False), skip, skip + per_domain
        )
    ]


def _fitting(
    documents: Sequence[Document],
    domain: str,
    tokenizer: Tokenizer,
    form: ChatFormat,
    opening: bool,
) -> Iterator[tuple[Document, list[int]]]:
    """Yield shuffled documents and their prompts; of chats only the opening, where asked."""
    own = [d for d in documents if d.domain == domain]
    random.Random(0).shuffle(own)
    for document in own:
        turns = document.turns[:2] if opening and domain == "chat" else document.turns
        ids = tokenizer.encode(form.prompt(turns[:-1])).ids
        if 2 <= len(ids) <= form.longest_prompt:
            yield document, ids


def answer(
    model: Transformer,
    asked: Sequence[tuple[str, list[int]]],
    c: Decoding,
    *,
    names: Sequence[int] | None = None,
    batch: int = 96,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Answered]:
    """Return the target's answers in order; chat goes on past `c.stop`, playing both sides.

    The luck of each hangs on its number: its name where `names` are given, else its place.
    """
    names = range(len(asked)) if names is None else names
    order = sorted(range(len(asked)), key=lambda i: (asked[i][0], len(asked[i][1])))
    answers: dict[int, Answered] = {}
    for domain in DOMAINS:
        mine = [i for i in order if asked[i][0] == domain]
        rule = replace(c, stop=None) if domain == "chat" else c
        for first in range(0, len(mine), batch):
            part = mine[first : first + batch]
            texts = generate(
                model, [asked[i][1] for i in part], rule, requests=[names[i] for i in part]
            )
            for i, text in zip(part, texts, strict=True):
                answers[i] = Answered(domain, tuple(asked[i][1]), tuple(text))
            progress(len(answers))
    return [answers[i] for i in range(len(asked))]


def save_answers(path: Path, answers: Sequence[Answered]) -> None:
    """Write answers to an `.npz` file."""
    rows = [np.array([*a.prompt, *a.answer], np.int32) for a in answers]
    with whole_file(path) as temporary:
        np.savez(
            temporary,
            tokens=np.concatenate(rows),
            lengths=[len(row) for row in rows],
            prompts=[len(a.prompt) for a in answers],
            domains=[a.domain for a in answers],
        )


def read_answers(path: Path) -> list[Answered]:
    """Read what `save_answers` wrote."""
    with np.load(path) as data:
        pieces = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
        return [
            Answered(str(domain), tuple(piece[:n].tolist()), tuple(piece[n:].tolist()))
            for piece, n, domain in zip(pieces, data["prompts"], data["domains"], strict=True)
        ]


def training_texts(
    answers: Sequence[Answered], longest: int = 256
) -> tuple[list[list[int]], list[int]]:
    """Return token rows, at most `longest`, and where anchors begin: the prompt's last token."""
    rows, starts = [], []
    for a in answers:
        row = [*a.prompt, *a.answer][:longest]
        if len(row) > len(a.prompt) + 1:
            rows.append(row)
            starts.append(len(a.prompt) - 1)
    return rows, starts
