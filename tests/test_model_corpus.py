from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
pytest.importorskip("tokenizers", reason="the extra `model` (tokenizers) is not installed")

import numpy as np
from model_nano import nano_target

from dspark_sim.model.corpus import (
    DOMAINS,
    FORMAT,
    Document,
    chat_prompt,
    library_code,
    pack,
    read_packed,
    split,
    train_tokenizer,
)
from dspark_sim.model.corpus import corpus_files as read_corpora
from dspark_sim.model.generate import Decoding
from dspark_sim.model.responses import (
    answer,
    prompts,
    read_answers,
    references,
    save_answers,
    training_texts,
)

DOCUMENTS = [
    Document(domain, (f"how many is {i} and {i}?", f"{i}+{i} = {2 * i}\n#### {2 * i}"))
    for domain in DOMAINS
    for i in range(100, 140)
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([d.text() for d in DOCUMENTS], 300)


def test_a_conversation_alternates_between_user_and_assistant() -> None:
    d = Document("chat", ("hi", "hello", "how are you?", "fine"))
    assert d.text() == (
        "<|user|>hi<|end|><|assistant|>hello<|end|>"
        "<|user|>how are you?<|end|><|assistant|>fine<|end|>"
    )
    assert chat_prompt(d.turns[:-1]) == d.text().removesuffix("fine<|end|>")


def test_the_tokenizer_loses_nothing_and_splits_digits(tokenizer) -> None:
    text = DOCUMENTS[3].text()
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    assert encoded.ids[0] == 1
    assert encoded.ids[-1] == 0
    assert {"1", "0", "3"} <= set(encoded.tokens)
    assert tokenizer.get_vocab_size() <= 300


def test_packed_rows_begin_at_documents_and_survive_the_file(tokenizer, tmp_path) -> None:
    packed = pack(DOCUMENTS, tokenizer)
    packed.save(tmp_path / "p.npz")
    back = read_packed(tmp_path / "p.npz")
    rows = back.rows(50, 12, np.random.default_rng(0))
    assert rows.shape == (50, 12)
    assert (rows[:, 0] == 1).all()
    assert back.tokens.dtype == np.uint16
    assert len(back.starts) == len(DOCUMENTS)


def test_every_domain_gives_the_same_share_to_the_held_out_part() -> None:
    training, held_out = split(DOCUMENTS)
    assert len(training) + len(held_out) == len(DOCUMENTS)
    assert not {d.turns[0] + d.domain for d in training} & {d.turns[0] + d.domain for d in held_out}
    assert [sum(d.domain == name for d in held_out) for name in DOMAINS] == [1, 1, 1]


def test_gsm8k_loses_its_calculator_marks_and_alpaca_keeps_its_input(tmp_path) -> None:
    row = {"question": "q?", "answer": "1+1=<<1+1=2>>2\n#### 2"}
    (tmp_path / "gsm8k_train.jsonl").write_text(json.dumps(row) + "\n")
    rows = [{"instruction": "add", "input": "1, 2", "output": "3"}]
    (tmp_path / "codealpaca.json").write_text(json.dumps(rows))
    assert list(read_corpora(tmp_path)) == [
        Document("math", ("q?", "1+1=2\n#### 2")),
        Document("code", ("add\n1, 2", "3")),
    ]


def test_functions_of_the_standard_library_are_documents(tmp_path) -> None:
    body = '    """Say it.\n\n    More."""\n    return "a long enough function body to be kept"\n'
    (tmp_path / "mod.py").write_text(
        "class A:\n    def say(self):\n" + body.replace("    ", "        ")
    )
    (tmp_path / "broken.py").write_text("def (:\n")
    (document,) = library_code(tmp_path)
    assert document.turns[0] == "Write the function say of mod. Say it."
    assert document.turns[1].startswith('def say(self):\n    """Say it.')


def test_answers_are_kept_in_order_and_anchors_begin_at_the_prompts_end(
    tokenizer, tmp_path
) -> None:
    asked = prompts(DOCUMENTS, tokenizer, FORMAT, 4)
    assert [domain for domain, _ in asked] == ["math"] * 4 + ["code"] * 4 + ["chat"] * 4
    target = nano_target(vocab_size=300)
    answers = answer(target, asked, Decoding(10, seed=1), batch=3)
    assert [list(a.prompt) for a in answers] == [ids for _, ids in asked]
    save_answers(tmp_path / "a.npz", answers)
    assert read_answers(tmp_path / "a.npz") == answers
    rows, starts = training_texts(answers, longest=30)
    assert all(len(row) <= 30 for row in rows)
    assert all(row[s] == 2 for row, s in zip(rows, starts, strict=True))  # the assistant's token


def test_reference_answers_are_those_of_the_text_past_the_ones_asked(tokenizer) -> None:
    asked = prompts(DOCUMENTS, tokenizer, FORMAT, 4)
    given = references(DOCUMENTS, tokenizer, FORMAT, 3, skip=4)
    assert [a.domain for a in given] == ["math"] * 3 + ["code"] * 3 + ["chat"] * 3
    assert not {tuple(ids) for domain, ids in asked} & {a.prompt for a in given}
    texts = {chat_prompt(d.turns[:-1]): d.turns[-1] for d in DOCUMENTS}
    for a in given:
        question = tokenizer.decode(a.prompt, skip_special_tokens=False)
        assert tokenizer.decode(a.answer) == texts[question]
        assert a.answer[-1] == FORMAT.end
