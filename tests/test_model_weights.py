from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
pytest.importorskip("safetensors", reason="the extra `model` (safetensors) is not installed")

from model_nano import nano_drafter, nano_target, prompts  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.corpus import train_tokenizer  # noqa: E402
from dspark_sim.model.generate import Decoding  # noqa: E402
from dspark_sim.model.speculate import speculate  # noqa: E402
from dspark_sim.model.weights import (  # noqa: E402
    load_drafter,
    load_target,
    save_weights,
    weights_about,
)


@pytest.fixture
def folder(tmp_path):
    target = nano_target()
    place = tmp_path / "nano"
    place.mkdir()
    train_tokenizer(["a b c"], 300).save(str(place / "tokenizer.json"))
    save_weights(place / "target.safetensors", target, target.config, {"loss": 1.5})
    for name, changes in (("dspark-rnn", {}), ("dspark-markov", {"draft_ids": (5, 1, 9)})):
        drafter = nano_drafter(name, target, **changes)
        save_weights(place / f"{name}.safetensors", drafter, drafter.config)
    return tmp_path


@pytest.mark.parametrize("name", ["dspark-rnn", "dspark-markov", "ngram"])
def test_a_pair_read_from_disk_speculates_like_the_one_written(folder, name: str) -> None:
    target, tokenizer = load_target("nano", folder)
    assert tokenizer.get_vocab_size() > 3
    drafter = load_drafter(name, target, folder)
    assert not any(p.requires_grad for p in [*target.parameters(), *drafter.parameters()])
    original = nano_target()
    original.load_state_dict({k: v.half().float() for k, v in original.state_dict().items()})
    changes = {"draft_ids": (5, 1, 9)} if name == "dspark-markov" else {}
    changes |= {"num_speculative_tokens": 7} if name == "ngram" else {}
    twin = nano_drafter(name, original, **changes)
    written = nano_drafter(name, nano_target(), **changes).state_dict()
    twin.load_state_dict({k: v.half().float() for k, v in written.items()})
    c = Decoding(15, temperature=0.0)
    assert speculate(target, drafter, prompts(3), c) == speculate(original, twin, prompts(3), c)


def test_weights_say_what_made_them(folder) -> None:
    assert weights_about(folder / "nano" / "target.safetensors") == {"loss": 1.5}


def test_unknown_targets_and_drafters_are_told_with_the_known_ones(folder) -> None:
    with pytest.raises(UserError, match="unknown target model 'nan': did you mean 'nano'"):
        load_target("nan", folder)
    target, _ = load_target("nano", folder)
    with pytest.raises(UserError, match="allowed: dspark-markov, dspark-rnn, ngram"):
        load_drafter("eagle3", target, folder)


def test_a_file_that_is_no_weights_file_is_named(folder) -> None:
    (folder / "nano" / "target.safetensors").write_bytes(b"{}")
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_target("nano", folder)
