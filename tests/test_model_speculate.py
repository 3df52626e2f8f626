from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

import numpy as np  # noqa: E402
from model_lively import lively_target  # noqa: E402
from model_nano import EVERY_DRAFTER, nano_drafter, nano_target, prompts  # noqa: E402
from scipy.stats import chi2_contingency  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.model.generate import Decoding, generate  # noqa: E402
from dspark_sim.model.sampling import distribution, draw, residual, uniforms  # noqa: E402
from dspark_sim.model.speculate import DraftView, speculate  # noqa: E402

TARGET = lively_target()
SMALL = nano_target(vocab_size=6, sharpness=4.0)
REQUESTS = 4_000


def ragged(view: DraftView):
    """Verify lengths that differ between requests and steps and depend on the confidence."""
    gamma = view.confidence.shape[1]
    survival = view.confidence.cumprod(1)
    return torch.minimum((survival > 0.02).sum(1), (view.requests + view.positions) % (gamma + 1))


@pytest.mark.parametrize("name", EVERY_DRAFTER)
@pytest.mark.parametrize("lengths", [None, 1, 0, ragged])
def test_greedy_speculation_is_greedy_decoding(name: str, lengths: object) -> None:
    c = Decoding(20, temperature=0.0)
    drafter = nano_drafter(name, TARGET)
    result = speculate(TARGET, drafter, prompts(6), c, lengths)
    assert result.responses == generate(TARGET, prompts(6), c)


@pytest.mark.parametrize("name", EVERY_DRAFTER)
def test_a_batch_with_unequal_verify_lengths_equals_its_requests_one_by_one(name: str) -> None:
    c, drafter = Decoding(20, temperature=1.0, seed=5), nano_drafter(name, TARGET)
    together = speculate(TARGET, drafter, prompts(5), c, ragged)
    for i, prompt in enumerate(prompts(5)):
        alone = speculate(TARGET, drafter, [prompt], c, ragged, requests=[i])
        assert together.responses[i] == alone.responses[0]
        mine = [
            (r.position, r.drafted, r.verify_len, r.accepted)
            for r in together.records
            if r.request == i
        ]
        assert mine == [(r.position, r.drafted, r.verify_len, r.accepted) for r in alone.records]


def two_tokens(responses: list[list[int]]) -> np.ndarray:
    """Counts of the second and third token of every response."""
    pairs = np.array([r[1] * 6 + r[2] for r in responses])
    return np.bincount(pairs, minlength=36)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """p value of the chi-square test that both come from one law, rare cells pooled."""
    table = np.stack([one, other])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], 1)
    return float(chi2_contingency(table[:, table.sum(0) > 0]).pvalue)


OWN = two_tokens(generate(SMALL, [[1, 2, 3]] * REQUESTS, Decoding(3, seed=11)))


@pytest.mark.parametrize("name", EVERY_DRAFTER)
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_sampled_speculation_has_the_targets_own_law(name: str, top_p: float) -> None:
    c = Decoding(3, top_p=top_p, seed=12)
    own = OWN
    if top_p < 1:
        own = two_tokens(generate(SMALL, [[1, 2, 3]] * REQUESTS, Decoding(3, top_p=top_p, seed=11)))
    drafter = nano_drafter(name, SMALL)
    result = speculate(SMALL, drafter, [[1, 2, 3]] * REQUESTS, c)
    assert difference(own, two_tokens(result.responses)) > 1e-3


def test_a_broken_acceptance_rule_is_caught() -> None:
    def generous(target, draft, u):
        return u * draft < 1.5 * target

    drafter = nano_drafter("dspark-markov", SMALL)
    result = speculate(SMALL, drafter, [[1, 2, 3]] * REQUESTS, Decoding(3, seed=12), rule=generous)
    assert difference(OWN, two_tokens(result.responses)) < 1e-6


def test_records_count_every_token_that_was_committed() -> None:
    drafter = nano_drafter("dspark-markov", TARGET)
    result = speculate(TARGET, drafter, prompts(4), Decoding(30), 3)
    for i, response in enumerate(result.responses):
        steps = [r for r in result.records if r.request == i]
        assert steps[0].position == 1
        for a, b in pairwise(steps):
            assert b.position == a.position + a.accepted + 1
        assert steps[-1].position + steps[-1].accepted + 1 >= len(response) == 30
        for r in steps:
            assert r.accepted <= r.verify_len == 3
            assert (
                list(r.drafted[: r.accepted])
                == (response + [None] * 9)[r.position : r.position + r.accepted]
                or r.position + r.accepted > 30
            )


def test_a_reduced_draft_vocabulary_stays_lossless() -> None:
    drafter = nano_drafter("dspark-markov", SMALL, draft_ids=(4, 1, 2))
    result = speculate(SMALL, drafter, [[1, 2, 3]] * REQUESTS, Decoding(3, seed=12))
    assert {t for r in result.records for t in r.drafted} <= {1, 2, 4}
    assert difference(OWN, two_tokens(result.responses)) > 1e-3


def test_verify_lengths_beyond_the_block_are_refused() -> None:
    drafter = nano_drafter("dflash", TARGET)
    with pytest.raises(UserError, match=r"verify lengths must lie in 0\.\.4, got 9\.\.9"):
        speculate(TARGET, drafter, prompts(2), Decoding(5), 9)


def test_draws_follow_their_distribution_and_never_hit_a_zero() -> None:
    p = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    u = uniforms(1, torch.arange(20_000), torch.tensor(0), 0)
    counts = torch.bincount(draw(p.expand(20_000, 6), u), minlength=6) / 20_000
    assert counts[[0, 2, 5]].sum() == 0
    torch.testing.assert_close(counts, p, atol=0.015, rtol=0)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    p = distribution(logits, 1.0, 0.75)
    torch.testing.assert_close(p, torch.tensor([0.625, 0.375, 0.0, 0.0]))
    assert distribution(logits, 0.0).tolist() == [1, 0, 0, 0]


def test_the_residual_of_equal_distributions_is_the_distribution() -> None:
    p = torch.tensor([0.2, 0.8])
    assert torch.equal(residual(p, p), p)
    torch.testing.assert_close(residual(p, torch.tensor([0.5, 0.5])), torch.tensor([0.0, 1.0]))
