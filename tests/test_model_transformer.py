from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

from model_nano import nano_target, prompts  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.generate import Decoding, generate, pad, prefill  # noqa: E402
from dspark_sim.model.transformer import model_config  # noqa: E402

TARGET = nano_target()


@torch.no_grad()
def test_a_cached_pass_equals_the_plain_causal_pass() -> None:
    tokens = torch.randint(0, 64, (3, 12))
    whole = TARGET(tokens)
    cache = TARGET.new_cache(3, 4)
    parts = [TARGET(piece, cache) for piece in tokens.split([5, 1, 6], dim=1)]
    hidden = torch.cat([part.hidden for part in parts], 1)
    torch.testing.assert_close(hidden, whole.hidden, atol=1e-5, rtol=1e-5)
    features = torch.cat([part.features[0] for part in parts], 1)
    torch.testing.assert_close(features, whole.features[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_batch_of_unequal_lengths_equals_its_requests_one_by_one() -> None:
    texts, blocks = prompts(5), prompts(5, seed=7)
    cache, _, _, _ = prefill(TARGET, texts, room=8)
    tokens, counts = pad(blocks, torch.device("cpu"))
    together = TARGET(tokens, cache, counts)
    assert cache.lengths.tolist() == [len(a) + len(b) for a, b in zip(texts, blocks, strict=True)]
    for row, (text, block) in enumerate(zip(texts, blocks, strict=True)):
        alone = TARGET(torch.tensor([text + block])).hidden[0, len(text) :]
        torch.testing.assert_close(together.hidden[row, : len(block)], alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_rolling_the_cache_back_leaves_no_trace() -> None:
    texts = prompts(4)
    touched, _, _, counts = prefill(TARGET, texts, room=8)
    clean, _, _, _ = prefill(TARGET, texts, room=8)
    TARGET(torch.randint(0, 64, (4, 20)), touched)
    touched.lengths = counts
    tokens = torch.randint(0, 64, (4, 6))
    assert torch.equal(TARGET(tokens, touched).hidden, TARGET(tokens, clean).hidden)


def test_a_response_does_not_depend_on_the_batch_it_is_generated_in() -> None:
    c = Decoding(15, temperature=1.0, top_p=0.9, seed=3)
    together = generate(TARGET, prompts(6), c)
    alone = [generate(TARGET, [p], c, requests=[i])[0] for i, p in enumerate(prompts(6))]
    assert together == alone


def test_a_response_ends_a_given_number_of_tokens_after_the_stop_token() -> None:
    free = generate(TARGET, prompts(8), Decoding(40))
    stop = free[0][5]
    first = free[0].index(stop)
    cut = generate(TARGET, prompts(8), Decoding(40, stop=stop, extra=3))
    assert cut[0] == free[0][: first + 4]
    assert all(c == f[: len(c)] for c, f in zip(cut, free, strict=True))


def test_an_unknown_model_is_told_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown model 'nanno': did you mean 'nano'"):
        model_config("nanno")
