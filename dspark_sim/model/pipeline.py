"""From text to trained weights: every stage leaves a file and is skipped where that file exists."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dspark_sim.model.corpus import (
    DOMAINS,
    Document,
    Packed,
    load_documents,
    pack,
    read_packed,
    split,
    train_tokenizer,
)
from dspark_sim.model.drafters import build_drafter, drafter_config
from dspark_sim.model.generate import Decoding
from dspark_sim.model.hidden import HiddenCache, read_hidden, write_hidden
from dspark_sim.model.pretrain import PretrainConfig, pretrain
from dspark_sim.model.responses import answer, prompts, read_answers, save_answers, training_texts
from dspark_sim.model.training import TrainConfig, train_drafter
from dspark_sim.model.transformer import ModelConfig, Transformer, model_config
from dspark_sim.model.weights import load_target, save_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Progress = Callable[[dict[str, Any]], None]


_PAST_THE_END = 7  # blocks near the end of an answer reach beyond it


@dataclass(frozen=True)
class Recipe:
    """All that is needed to make one target and its drafters again."""

    model: ModelConfig
    pretraining: PretrainConfig
    drafting: TrainConfig
    answers_per_domain: int
    answer_tokens: int
    bpe_characters: int = 3_000_000  # of text per domain


RECIPES = {
    "nano": Recipe(
        ModelConfig("nano", 512, 64, 2, 4, 2, 128, (1, 2), 256),
        PretrainConfig(steps=300, batch=9, width=128, save_every=50),
        TrainConfig(steps=300, rows=6, anchors=16),
        answers_per_domain=60,
        answer_tokens=80,
        bpe_characters=300_000,
    ),
    "tiny": Recipe(
        model_config("tiny"),
        PretrainConfig(steps=850, bf16=True, save_every=20),
        TrainConfig(steps=1_500, bf16=True),
        answers_per_domain=1_000,
        answer_tokens=140,
    ),
}


@dataclass(frozen=True)
class Workshop:
    """Where a recipe is carried out: `work` for what is made on the way, `weights` for results."""

    recipe: Recipe
    work: Path
    weights: Path
    corpora: Path | None = None
    progress: Progress = lambda row: None

    @property
    def folder(self) -> Path:
        """The target's folder of weights."""
        return self.weights / self.recipe.model.name

    def texts(self) -> tuple[list[Document], list[Document]]:
        """Return (training, held-out) documents."""
        return split(load_documents(self.corpora))

    def prepare(self) -> None:
        """Train the tokenizer and pack the text of every domain."""
        if (self.folder / "tokenizer.json").is_file():
            return
        training, held_out = self.texts()
        texts = [t for name in DOMAINS for t in self._sample(training, name)]
        tokenizer = train_tokenizer(texts, self.recipe.model.vocab_size)
        for name in DOMAINS:
            for part, documents in (("train", training), ("held_out", held_out)):
                chosen = [d for d in documents if d.domain == name]
                pack(chosen, tokenizer).save(self.work / f"{part}_{name}.npz")
        self.folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(self.folder / "tokenizer.json"))

    def _sample(self, documents: list[Document], domain: str) -> list[str]:
        texts = [d.text() for d in documents if d.domain == domain]
        random.Random(0).shuffle(texts)
        kept, size = [], 0
        for text in texts:
            if size < self.recipe.bpe_characters:
                kept.append(text)
                size += len(text)
        return kept

    def packed(self, part: str) -> dict[str, Packed]:
        """Return the packed text of every domain, `train` or `held_out`."""
        return {name: read_packed(self.work / f"{part}_{name}.npz") for name in DOMAINS}

    def train_target(self) -> None:
        """Train the target and write its weights."""
        path = self.folder / "target.safetensors"
        if path.is_file():
            return
        recipe, losses = self.recipe, dict[str, Any]()

        def note(row: dict[str, Any]) -> None:
            losses.update(row)
            self.progress({"stage": "target", **row})

        model = pretrain(
            recipe.model,
            recipe.pretraining,
            self.packed("train"),
            self.packed("held_out"),
            self.work / "target.pt",
            note,
        )
        save_weights(path, model, recipe.model, losses)

    def target(self) -> Transformer:
        """Return the trained target as it is shipped."""
        return load_target(self.recipe.model.name, self.weights)[0]

    def answer_prompts(self) -> None:
        """Let the target answer prompts of the training and of the held-out text."""
        recipe = self.recipe
        if (self.work / "answers_train.npz").is_file():
            return
        model, tokenizer = load_target(recipe.model.name, self.weights)
        rule = Decoding(recipe.answer_tokens, extra=_PAST_THE_END)
        for seed, (part, documents) in enumerate(
            zip(("held_out", "train"), reversed(self.texts()), strict=True)
        ):
            asked = prompts(documents, tokenizer, recipe.answers_per_domain)
            answers = answer(
                model,
                asked,
                replace(rule, seed=seed),
                progress=lambda done: self.progress({"stage": "answers", "done": done}),
            )
            save_answers(self.work / f"answers_{part}.npz", answers)

    def hidden(self, part: str) -> HiddenCache:
        """Return the target's hidden states on the answers of `train` or `held_out`."""
        folder = self.work / f"hidden_{part}"
        if folder.is_dir():
            return read_hidden(folder)
        rows, starts = training_texts(read_answers(self.work / f"answers_{part}.npz"))
        return write_hidden(folder, self.target(), rows, starts)

    def train_drafter(self, name: str) -> None:
        """Train one drafter on the cached hidden states and write its weights."""
        path = self.folder / f"{name}.safetensors"
        if path.is_file():
            return
        target, last = self.target(), dict[str, Any]()
        torch.manual_seed(self.recipe.drafting.seed)
        config = drafter_config(name)
        drafter = build_drafter(config, target.config, target.embedding.weight)

        def note(row: dict[str, Any]) -> None:
            last.update(row)
            self.progress({"stage": name, **row})

        train_drafter(
            drafter,
            self.hidden("train"),
            self.hidden("held_out"),
            self.recipe.drafting,
            self.work / f"{name}.pt",
            note,
        )
        save_weights(path, drafter, config, last)

    def clear(self) -> None:
        """Remove what was made on the way; the weights stay."""
        shutil.rmtree(self.work, ignore_errors=True)


def run(workshop: Workshop, drafters: tuple[str, ...]) -> None:
    """Carry out a recipe to the end; what exists already is kept, what was begun goes on."""
    workshop.prepare()
    workshop.train_target()
    workshop.answer_prompts()
    for name in drafters:
        workshop.train_drafter(name)
