"""Text of three domains (math, code, chat): documents, a byte-level BPE, packed token arrays."""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.core import UserError, whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

END, USER, ASSISTANT = 0, 1, 2
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
DOMAINS = ("math", "code", "chat")
HELD_OUT = 0.03
_CHAT_TURNS = 8


@dataclass(frozen=True)
class Document:
    """One conversation: turns alternate user, assistant; the last is the assistant's."""

    domain: str
    turns: tuple[str, ...]

    def text(self) -> str:
        """Return the chat format, special tokens written out; every turn is closed by the end."""
        return "".join(SPECIAL[1 + i % 2] + t + SPECIAL[0] for i, t in enumerate(self.turns))


@dataclass(frozen=True)
class ChatFormat:
    """How a target is spoken to: the text before its answer, and the token that ends a turn."""

    prompt: Callable[[Sequence[str]], str]
    end: int
    longest_prompt: int  # tokens


def chat_prompt(turns: Sequence[str]) -> str:
    """Return the format on turns user, assistant, user, …, ready for the next answer."""
    return "".join(SPECIAL[1 + i % 2] + t + SPECIAL[0] for i, t in enumerate(turns)) + SPECIAL[2]


FORMAT = ChatFormat(chat_prompt, END, longest_prompt=112)


def load_documents(corpora: Path | None) -> list[Document]:
    """Return all documents: GSM8K and CodeAlpaca from `corpora`, the rest from packages.

    Code also takes Python's standard library, chat the `chitchat-dataset` package. Without
    `corpora` math is arithmetic word problems from templates.
    """
    documents = list(library_code())
    if corpora is not None:
        documents += corpus_files(corpora)
    else:
        documents += _arithmetic(6_000)
    return [*documents, *_chitchat()]


def split(documents: list[Document], seed: int = 0) -> tuple[list[Document], list[Document]]:
    """Return (training, held-out) documents, the same share of each domain held out."""
    training: list[Document] = []
    held_out: list[Document] = []
    for domain in DOMAINS:
        chosen = [d for d in documents if d.domain == domain]
        random.Random(seed).shuffle(chosen)
        count = max(1, int(len(chosen) * HELD_OUT))
        held_out += chosen[:count]
        training += chosen[count:]
    return training, held_out


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE, digits one by one, special tokens first (ids 0, 1, 2)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"\n[ ]*"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass(frozen=True)
class Packed:
    """Token ids of one domain's documents end to end, and where each document starts."""

    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]

    def rows(self, count: int, width: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return (count, width) rows, each beginning at a random document."""
        usable = self.starts[self.starts + width <= len(self.tokens)]
        begin = rng.choice(usable, count)
        return self.tokens[begin[:, None] + np.arange(width)].astype(np.int64)

    def save(self, path: Path) -> None:
        """Write to an `.npz` file."""
        with whole_file(path) as temporary:
            np.savez(temporary, tokens=self.tokens, starts=self.starts)


def read_packed(path: Path) -> Packed:
    """Read what `Packed.save` wrote."""
    with np.load(path) as data:
        return Packed(data["tokens"], data["starts"])


def pack(documents: Iterable[Document], tokenizer: Tokenizer) -> Packed:
    """Tokenise documents and lay them end to end."""
    encoded = tokenizer.encode_batch([d.text() for d in documents])
    pieces = [np.array(e.ids, dtype=np.uint16) for e in encoded]
    starts = np.cumsum([0, *(len(p) for p in pieces)])[:-1]
    return Packed(np.concatenate(pieces), starts.astype(np.int64))


def corpus_files(folder: Path) -> Iterator[Document]:
    """Yield the documents of `gsm8k_train.jsonl` (math) and `codealpaca.json` (code)."""
    for name in ("gsm8k_train.jsonl", "codealpaca.json"):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: no such file; a folder of text holds it")
    yield from _gsm8k(folder / "gsm8k_train.jsonl")
    yield from _alpaca(folder / "codealpaca.json")


def _gsm8k(path: Path) -> Iterator[Document]:
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        answer = re.sub(r"<<.*?>>", "", row["answer"])
        yield Document("math", (row["question"].strip(), answer.strip()))


def _alpaca(path: Path) -> Iterator[Document]:
    for row in json.loads(path.read_text(encoding="utf-8")):
        asked = row["instruction"].strip()
        if row["input"].strip():
            asked += "\n" + row["input"].strip()
        if row["output"].strip() and len(row["output"]) < 3_000:
            yield Document("code", (asked, row["output"].strip()))


def library_code(root: Path | None = None) -> Iterator[Document]:
    """Yield functions of Python's standard library, asked for by name and first doc line."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}
    for path in sorted(root.rglob("*.py")):
        if skipped & set(path.relative_to(root).parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        lines = source.split("\n")
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                code = _dedent(lines[node.lineno - 1 : node.end_lineno], node.col_offset)
                if 60 < len(code) < 1_200:
                    purpose = (ast.get_docstring(node) or "").split("\n")[0][:80]
                    ask = f"Write the function {node.name} of {path.stem}. {purpose}".strip()
                    yield Document("code", (ask, code))


def _dedent(lines: list[str], columns: int) -> str:
    return "\n".join(line.removeprefix(" " * columns) for line in lines).strip()


def _chitchat() -> Iterator[Document]:
    package = importlib.util.find_spec("chitchat_dataset")  # its reader leaks a file
    if package is None or package.origin is None:
        raise UserError(
            "chat text comes from the package chitchat-dataset: pip install chitchat-dataset"
        )
    text = (Path(package.origin).parent / "dataset.json").read_text(encoding="utf-8")
    for conversation in json.loads(text).values():
        turns: list[str] = []
        sender = None
        for block in conversation["messages"]:
            for message in block:
                text = message["text"].strip()
                if sender == message["sender"]:
                    turns[-1] += " " + text
                else:
                    turns.append(text)
                sender = message["sender"]
        for first in range(0, len(turns) - 1, _CHAT_TURNS):
            piece = turns[first : first + _CHAT_TURNS]
            yield Document("chat", tuple(piece[: len(piece) // 2 * 2]))


def _arithmetic(count: int, seed: int = 0) -> Iterator[Document]:
    rng = random.Random(seed)
    names = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
    things = ("apples", "books", "cards", "coins", "pens", "shells")
    for _ in range(count):
        name, thing = rng.choice(names), rng.choice(things)
        a, b, c = rng.randint(2, 60), rng.randint(2, 60), rng.randint(2, 9)
        yield Document(
            "math",
            (
                f"{name} has {a} {thing} and buys {b} more. A friend has {c} times as many. "
                f"How many {thing} does the friend have?",
                f"{name} has {a}+{b} = {a + b} {thing}.\n"
                f"The friend has {a + b}*{c} = {(a + b) * c} {thing}.\n#### {(a + b) * c}",
            ),
        )
