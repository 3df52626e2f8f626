"""From text to trained weights: every stage leaves a file and is skipped where that file exists."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from dspark_sim.core import UserError, unknown_name
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
from dspark_sim.model.responses import (
    Answered,
    answer,
    prompts,
    read_answers,
    references,
    save_answers,
    training_texts,
)
from dspark_sim.model.training import TrainConfig, train_drafter
from dspark_sim.model.transformer import ModelConfig, Transformer, model_config
from dspark_sim.model.weights import (
    SMOLLM2,
    TARGET_FILES,
    chat_format,
    load_target,
    save_weights,
    weights_dir,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tokenizers import Tokenizer

    Progress = Callable[[dict[str, Any]], None]


_PAST_THE_END = 7  # blocks near the end of an answer reach beyond it
_SEEDS_PER_PART = 10


@dataclass(frozen=True)
class Recipe:
    """All that is needed to make one target and its drafters again.

    Without `pretraining` the target is one that comes trained. Drafters learn from
    `answers_per_domain` answers of the target itself, at `temperatures` in turn, and from
    `texts_per_domain` answers that stand in the text. `half` runs the target in bfloat16 for this.
    """

    model: ModelConfig
    pretraining: PretrainConfig | None
    drafting: TrainConfig
    answers_per_domain: int
    answer_tokens: int = 140
    held_out_answers: int = 100  # per domain
    temperatures: tuple[float, ...] = (1.0,)
    texts_per_domain: int = 0
    draft_vocab: int | None = None  # the most frequent tokens only
    half: bool = False
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
        PretrainConfig(steps=3_500, bf16=True, save_every=20),
        TrainConfig(steps=1_500, bf16=True),
        answers_per_domain=1_000,
    ),
    SMOLLM2: Recipe(
        model_config(SMOLLM2),
        None,
        TrainConfig(steps=600, anchors=64, warmup=15, bf16=True, save_every=20),
        answers_per_domain=360,
        held_out_answers=32,
        temperatures=(1.0, 0.7),
        texts_per_domain=400,
        draft_vocab=4_096,
        half=True,
    ),
}


def recipe(name: str) -> Recipe:
    """Return the recipe of a target, by name."""
    if name not in RECIPES:
        raise unknown_name("target", name, RECIPES)
    return RECIPES[name]


@dataclass(frozen=True)
class Workshop:
    """Where a recipe is carried out: `work` for what is made on the way, `weights` for results."""

    recipe: Recipe
    work: Path
    weights: Path
    corpora: Path | None = None
    progress: Progress = lambda row: None

    @property
    def name(self) -> str:
        """The target's name."""
        return self.recipe.model.name

    @property
    def folder(self) -> Path:
        """The target's folder of weights."""
        return self.weights / self.name

    def texts(self) -> tuple[list[Document], list[Document]]:
        """Return (training, held-out) documents."""
        return split(load_documents(self.corpora))

    def take_shipped(self) -> None:
        """Start from the shipped target, where there is one and the folder has none yet."""
        shipped = weights_dir() / self.name
        for file in TARGET_FILES:
            if (shipped / file).is_file() and not (self.folder / file).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(shipped / file, self.folder / file)

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
        """Train the target and write its weights, unless it comes trained."""
        path, config = self.folder / "target.safetensors", self.recipe.pretraining
        if config is None or path.is_file():
            return
        self.prepare()
        losses = dict[str, Any]()

        def note(row: dict[str, Any]) -> None:
            losses.update(row)
            self.progress({"stage": "target", "steps": config.steps, **row})

        model = pretrain(
            self.recipe.model,
            config,
            self.packed("train"),
            self.packed("held_out"),
            self.work / "target.pt",
            note,
        )
        save_weights(path, model, self.recipe.model, losses)

    def target(self) -> Transformer:
        """Return the trained target as it is shipped."""
        return load_target(self.name, self.weights)[0]

    def reading_target(self) -> tuple[Transformer, Tokenizer]:
        """Return the target that answers and reads text for the drafters, and its tokenizer."""
        model, tokenizer = load_target(self.name, self.weights)
        kind = torch.bfloat16 if self.recipe.half else torch.float32
        return model.to(self.recipe.drafting.device, kind), tokenizer

    def answers(self, part: str) -> list[Answered]:
        """Return what drafters learn from (`train`) or are tried on (`held_out`)."""
        r, form, training = self.recipe, chat_format(self.name), part == "train"
        documents = self.texts()[0 if training else 1]
        count = r.answers_per_domain if training else r.held_out_answers
        answers = [a for t in range(len(r.temperatures)) for a in self.own(part, t)]
        if training:
            tokenizer = load_target(self.name, self.weights)[1]
            answers += references(documents, tokenizer, form, r.texts_per_domain, skip=count)
        return answers

    def own(self, part: str, turn: int) -> list[Answered]:
        """Return the target's answers at one of the recipe's temperatures."""
        path = self.work / f"answers_{part}_{turn}.npz"
        if not path.is_file():
            save_answers(path, self._answer(part == "train", turn))
        return read_answers(path)

    def _answer(self, training: bool, turn: int) -> list[Answered]:
        r, form = self.recipe, chat_format(self.name)
        model, tokenizer = self.reading_target()
        documents = self.texts()[0 if training else 1]
        count = r.answers_per_domain if training else r.held_out_answers
        asked = prompts(documents, tokenizer, form, count)[turn :: len(r.temperatures)]
        rule = Decoding(
            r.answer_tokens,
            r.temperatures[turn],
            seed=_SEEDS_PER_PART * training + turn,
            stop=form.end,
            extra=_PAST_THE_END,
        )
        stage = f"answers at T = {r.temperatures[turn]:g}"
        return answer(model, asked, rule, progress=self._told(stage, len(asked)))

    def _told(self, stage: str, steps: int) -> Callable[[int], None]:
        return lambda done: self.progress({"stage": stage, "steps": steps, "step": done})

    def hidden(self, part: str) -> HiddenCache:
        """Return the target's hidden states on the answers of `train` or `held_out`."""
        folder = self.work / f"hidden_{part}"
        if folder.is_dir():
            return read_hidden(folder)
        rows, starts = training_texts(self.answers(part))
        told = self._told(f"hidden states, {part}", len(rows))
        return write_hidden(folder, self.reading_target()[0], rows, starts, progress=told)

    def train_drafter(self, name: str) -> None:
        """Train one drafter on the cached hidden states and write its weights."""
        path = self.folder / f"{name}.safetensors"
        if path.is_file():
            return
        target, last = self.target(), dict[str, Any]()
        training, held_out = self.hidden("train"), self.hidden("held_out")
        config = drafter_config(name, draft_ids=frequent_tokens(training, self.recipe.draft_vocab))
        torch.manual_seed(self.recipe.drafting.seed)
        drafter = build_drafter(config, target.config, target.embedding.weight)
        drafter.start_from(target)
        budget = self.recipe.drafting

        def note(row: dict[str, Any]) -> None:
            last.update(row)
            _append(self.folder / f"{name}-curve.csv", row)
            self.progress({"stage": name, "steps": budget.steps, **row})

        self.folder.mkdir(parents=True, exist_ok=True)
        train_drafter(drafter, training, held_out, budget, self.work / f"{name}.pt", note)
        save_weights(path, drafter, config, last)

    def run(self, drafters: tuple[str, ...]) -> None:
        """Carry out the recipe to the end; what exists is kept, what was begun goes on."""
        self.work.mkdir(parents=True, exist_ok=True)
        self.train_target()
        for name in drafters:
            self.train_drafter(name)


def _append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a learning curve: step, loss, held-out acceptance rate by draft position."""
    rates = {f"c{k}": rate for k, rate in enumerate(row["acceptance"], 1)}
    frame = pd.DataFrame([{"step": row["step"], "loss": round(row["loss"], 4), **rates}])
    frame.to_csv(path, mode="a", header=not path.exists(), index=False)


def frequent_tokens(data: HiddenCache, count: int | None) -> tuple[int, ...] | None:
    """Return the `count` most frequent token ids of a training set, or None for all."""
    if count is None:
        return None
    seen = Counter[int]()
    for row, start, length in zip(data.tokens, data.starts, data.lengths, strict=True):
        seen.update(row[start + 1 : length].tolist())
    return tuple(token for token, _ in seen.most_common(count))


def check_drafters(names: Iterable[str]) -> None:
    """Refuse a drafter that does not exist or cannot be trained."""
    for name in names:
        if drafter_config(name).kind == "ngram":
            raise UserError(
                "drafter 'ngram' looks tokens up in the prompt: there is nothing to train"
            )


def with_budget(chosen: Recipe, steps: int | None, device: str = "cpu") -> Recipe:
    """Return a recipe with another budget for drafters, and another device."""
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {device}: torch finds no such device here; use cpu")
    if steps is not None and steps < 1:
        raise UserError(f"--steps must be 1 or more, got {steps}")
    drafting = replace(chosen.drafting, device=device, steps=steps or chosen.drafting.steps)
    pretraining = chosen.pretraining and replace(chosen.pretraining, device=device)
    return replace(chosen, drafting=drafting, pretraining=pretraining)
