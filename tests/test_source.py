from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from dspark_sim.acceptance import ParametricAcceptance, geometric, load_acceptance
from dspark_sim.acceptance.luck import ACCEPT, DIFFICULTY, normal, request_key, uniform
from dspark_sim.core import UserError

CHAT = load_acceptance("chat-dspark")
DSV4 = load_acceptance("golden-dsv4-pro-dspark")
PLACES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=20)


@njit
def luck_of(seed, request, positions):
    """Level of the request, and difficulty and luck of each position."""
    key = request_key(seed, request)
    difficulty = np.array([normal(key, p, DIFFICULTY) for p in positions])
    return (
        normal(key, -1, DIFFICULTY),
        difficulty,
        np.array([uniform(key, p, ACCEPT) for p in positions]),
    )


def blocks(source, places, draft_len=None, seed=0):
    requests, positions = np.array(places).T
    return source.block(requests, positions, draft_len, seed)


@given(PLACES, st.integers(0, 2**40))
def test_a_token_is_accepted_iff_its_own_positions_luck_lies_below_its_rate(places, seed):
    confidence, accepted = blocks(CHAT, places, seed=seed)
    intercept = CHAT.intercepts()[7]
    for row, (request, position) in enumerate(places):
        level, difficulty, luck = luck_of(seed, request, np.arange(position, position + 7))
        rate = 1 / (1 + np.exp(-(intercept + level + difficulty)))
        assert confidence[row].tolist() == pytest.approx(rate.tolist(), rel=1e-12)
        assert accepted[row] == np.cumprod(luck < rate).sum()


@given(st.integers(0, 50), st.integers(0, 500), st.lists(st.integers(0, 7), max_size=6))
def test_an_outcome_does_not_depend_on_what_was_verified_before(request, position, verified):
    for length in verified:
        _, accepted = CHAT.block([request], [position])
        position += min(int(accepted[0]), length) + 1
    walked = CHAT.block([request], [position])
    fresh = replace(CHAT, name="fresh").block([request], [position])
    assert walked[0].tolist() == fresh[0].tolist()
    assert walked[1].tolist() == fresh[1].tolist()


@given(PLACES, st.integers(0, 7))
def test_a_shorter_draft_is_the_beginning_of_a_longer_one(places, draft_len):
    whole_confidence, whole = blocks(CHAT, places)
    confidence, accepted = blocks(CHAT, places, draft_len)
    assert confidence.tolist() == whole_confidence[:, :draft_len].tolist()
    assert accepted.tolist() == np.minimum(whole, draft_len).tolist()


@given(PLACES, st.integers(1, 6))
def test_golden_drafts_up_to_the_peak_share_their_luck(places, draft_len):
    _, peak = blocks(DSV4, places, 6)
    _, accepted = blocks(DSV4, places, draft_len)
    assert accepted.tolist() == np.minimum(peak, draft_len).tolist()


def test_a_golden_draft_beyond_the_peak_is_worse_for_the_same_luck():
    places = [(request, 0) for request in range(2_000)]
    _, peak = blocks(DSV4, places, 6)
    _, longest = blocks(DSV4, places, 8)
    early = np.minimum(longest, 6)
    assert (early <= peak).all()
    assert (early < peak).any()


@given(PLACES, st.randoms(use_true_random=False))
def test_the_order_and_company_of_questions_do_not_matter(places, random):
    shuffled = random.sample(range(len(places)), len(places))
    confidence, accepted = blocks(CHAT, places)
    again, same = blocks(CHAT, [places[i] for i in shuffled])
    assert again.tolist() == confidence[shuffled].tolist()
    assert same.tolist() == accepted[shuffled].tolist()


def test_another_seed_is_other_luck():
    places = [(request, 0) for request in range(200)]
    assert blocks(CHAT, places, seed=1)[1].tolist() != blocks(CHAT, places, seed=2)[1].tolist()


def test_an_easy_token_of_one_law_is_easy_in_every_law():
    requests = np.arange(20_000)
    counts = [
        load_acceptance(name).block(requests, requests * 0)[1]
        for name in ("math-dspark", "chat-dspark")
    ]
    assert np.corrcoef(counts)[0, 1] > 0.5
    assert (counts[0] >= counts[1]).all()


def test_certain_and_hopeless_tokens_are_accepted_and_rejected_for_sure():
    law = ParametricAcceptance("edge", (1.0, 1.0, 0.0), request_sd=2.0, token_sd=2.0)
    confidence, accepted = law.block(np.arange(1_000), np.zeros(1_000, dtype=int))
    assert set(accepted) == {2}
    assert confidence[0].tolist() == [1.0, 1.0, 0.0]


def test_a_belief_distorts_confidence_and_not_the_outcome():
    law = replace(CHAT, confidence_scale=0.5, confidence_bias=0.25)
    tables = law.tables([""], 7, confidence_scale=3.0, confidence_bias=1.0)
    assert tables.confidence_scale[0].tolist() == [1.5] * 7
    assert tables.confidence_bias[0].tolist() == [1.75] * 7
    assert tables.intercept.tolist() == CHAT.tables([""], 7).intercept.tolist()


def test_temperatures_divide_the_distorted_logit_by_draft_position():
    law = replace(CHAT, confidence_scale=0.5, confidence_bias=0.25, confidence_noise=0.5)
    tables = law.tables([""], 2, 3.0, 1.0, temperatures=(2.0, 4.0, 9.0))
    assert tables.confidence_scale.tolist() == [[0.75, 0.375]]
    assert tables.confidence_bias.tolist() == [[0.875, 0.4375]]
    assert tables.confidence_noise.tolist() == [[0.75, 0.375]]
    assert tables.intercept.tolist() == CHAT.tables([""], 2).intercept.tolist()


def test_too_extreme_a_view_of_confidences_is_told():
    for extreme in ((1e308, 0.0, (0.1, 0.1)), (1.0, 1e308, (1.0, 1e-9))):
        with pytest.raises(UserError, match="too extreme to compute with") as error:
            CHAT.tables([""], 2, *extreme)
        assert "\n" not in str(error.value)


def test_a_draft_of_no_tokens_is_an_empty_block():
    confidence, accepted = CHAT.block([0, 1], [5, 6], draft_len=0)
    assert confidence.shape == (2, 0)
    assert accepted.tolist() == [0, 0]


def test_no_blocks_are_no_error():
    confidence, accepted = CHAT.block(np.zeros(0, dtype=int), np.zeros(0, dtype=int))
    assert confidence.shape == (0, 7)
    assert accepted.shape == (0,)


@pytest.mark.parametrize("source", [CHAT, geometric(3.0, 7)], ids=lambda source: source.name)
@pytest.mark.parametrize("draft_len", [8, -1])
def test_a_draft_length_the_source_does_not_know_is_an_error(source, draft_len):
    with pytest.raises(UserError, match=rf"{draft_len} draft tokens .*'{source.name}'.* 0 to 7"):
        source.block([0], [0], draft_len)
