from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from verify_all_walk import length_score, rate_scores, walk

from dspark_sim.acceptance import (
    geometric,
    load_acceptance,
    minimum_variance,
)
from dspark_sim.acceptance.published import ACCEPTANCE_LENGTHS, CONDITIONAL_RATES
from dspark_sim.core import UserError

CHAT = load_acceptance("chat-dspark")
# Two-sided, 99.9 %: what a standard score stays within.
CONFIDENCE_999 = stats.norm.ppf(0.9995)


@pytest.mark.parametrize("name", CONDITIONAL_RATES)
def test_a_simulation_of_full_blocks_returns_the_published_rates(name):
    rounds = walk(load_acceptance(name), num_requests=4_000, tokens=1_000)
    rates = CONDITIONAL_RATES[name]
    assert np.abs(rate_scores(rounds, rates)).max() < CONFIDENCE_999
    assert abs(length_score(rounds, 1 + np.cumprod(rates).sum())) < CONFIDENCE_999


@pytest.mark.parametrize("draft_len", [1, 3, 6, 7, 8])
def test_a_simulation_of_full_blocks_returns_the_golden_length_of_every_draft_length(draft_len):
    rounds = walk(load_acceptance("golden-dsv4-pro-dspark"), 4_000, 1_000, draft_len)
    golden = ACCEPTANCE_LENGTHS["golden-dsv4-pro-dspark"][draft_len - 1]
    assert abs(length_score(rounds, golden)) < CONFIDENCE_999


def test_the_simulation_is_long_enough_to_notice_rates_that_are_2_percent_off():
    rounds = walk(CHAT, 4_000, 1_000)
    assert rate_scores(rounds, np.multiply(CHAT.rates, 0.98)).max() > CONFIDENCE_999
    assert length_score(rounds, 0.98 * (1 + np.cumprod(CHAT.rates).sum())) > CONFIDENCE_999


@pytest.mark.parametrize("length", [1.0, 1.7, 3.5, 7.999, 8.0])
def test_a_geometric_law_accepts_every_token_alike(length):
    law = geometric(length, 7)
    (rate,) = set(law.rates)
    assert sum(rate**j for j in range(8)) == pytest.approx(length, rel=1e-12)
    survival = rate ** np.arange(1, 8)
    mean, square = survival.sum(), (survival * (2 * np.arange(1, 8) - 1)).sum()
    check_counts(law, mean, square - mean**2)


@pytest.mark.parametrize("length", [1.0, 1.3, 4.0, 5.75, 8.0])
def test_a_minimum_variance_law_accepts_one_of_two_neighbouring_counts(length):
    law = minimum_variance(length, 7)
    part = (length - 1.0) % 1.0
    accepted = check_counts(law, length - 1.0, part * (1.0 - part))
    assert set(accepted) <= {int(length - 1.0), int(length - 1.0) + 1}


def check_counts(law, mean, variance):
    """Compare the accepted count's mean and variance over 40,000 single blocks."""
    count = 40_000
    _, accepted = law.block(np.arange(count), np.zeros(count, dtype=int))
    error = max(np.sqrt(variance / count), 1e-12)
    assert accepted.mean() == pytest.approx(mean, abs=CONFIDENCE_999 * error)
    fourth = ((accepted - mean) ** 4).mean()
    spread = np.sqrt(max(fourth - variance**2, 0.0) / count)
    assert accepted.var() == pytest.approx(variance, abs=CONFIDENCE_999 * spread + 1e-12)
    return accepted


@pytest.mark.parametrize("make", [geometric, minimum_variance])
@pytest.mark.parametrize("length", [0.99, 8.01, float("nan")])
def test_an_impossible_acceptance_length_is_an_error(make, length):
    with pytest.raises(UserError, match=r"acceptance length .* lies in 1\.\.8"):
        make(length, 7)


def test_the_prefix_auc_at_the_default_heterogeneity_is_near_fig_6():
    # arXiv 2607.05147, Fig. 6 (Alpaca): AUC at positions 1, 3, 5, 7.
    published = {1: 0.818, 3: 0.812, 5: 0.864, 7: 0.907}
    found = {position: CHAT.prefix_auc(position) for position in published}
    assert found == pytest.approx(published, abs=0.04)


@pytest.mark.parametrize("law", [CHAT, replace(CHAT, confidence_noise=1.0)], ids=["clean", "noisy"])
@pytest.mark.parametrize("position", [1, 4, 7])
def test_the_prefix_auc_is_the_one_a_simulation_shows(law, position):
    rounds = walk(law, 1_500, 300)
    score = np.cumprod(rounds.confidence, axis=1)[:, position - 1]
    found = auc(score, rounds.accepted >= position)
    assert found == pytest.approx(law.prefix_auc(position), abs=0.012)


def auc(score, label):
    ranks = stats.rankdata(score)
    positives, negatives = label.sum(), (~label).sum()
    return (ranks[label].sum() - positives * (positives + 1) / 2) / (positives * negatives)


@settings(max_examples=20)
@given(st.floats(0.0, 5.0), st.floats(0.1, 5.0), st.integers(1, 7))
def test_noise_only_lowers_the_auc(noise, more, position):
    aucs = [replace(CHAT, confidence_noise=n).prefix_auc(position) for n in (noise, noise + more)]
    assert CHAT.prefix_auc(position) >= aucs[0] - 0.003
    assert aucs[0] >= aucs[1] - 0.003


def test_scale_and_bias_leave_the_auc_of_one_token_as_it_is():
    distorted = replace(CHAT, confidence_scale=2.0, confidence_bias=-1.0)
    assert distorted.prefix_auc(1) == CHAT.prefix_auc(1)


def test_without_heterogeneity_confidence_ranks_nothing():
    assert replace(CHAT, request_sd=0.0, token_sd=0.0).prefix_auc(1) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("target", "position"), [(0.8, 1), (0.65, 1), (0.52, 1), (0.75, 5)])
def test_with_auc_hits_its_target_by_adding_noise(target, position):
    law = CHAT.with_auc(target, position)
    assert law.prefix_auc(position) == pytest.approx(target, abs=1e-3)
    assert law.confidence_noise > 0.0
    assert replace(law, confidence_noise=0.0) == CHAT


def test_with_auc_replaces_noise_that_was_there():
    noisy = replace(CHAT, confidence_noise=3.0)
    assert noisy.with_auc(0.75) == CHAT.with_auc(0.75)


def test_an_auc_above_what_heterogeneity_allows_is_an_error():
    ceiling = CHAT.prefix_auc(1)
    assert CHAT.with_auc(ceiling).confidence_noise == 0.0
    with pytest.raises(UserError, match=rf"AUC of 0\.95 .* 0\.5\.\.{ceiling:.3f}.*request_sd=1"):
        CHAT.with_auc(0.95)


@pytest.mark.parametrize("auc", [0.5, 0.3, float("nan")])
def test_an_auc_of_one_half_or_less_is_an_error(auc):
    with pytest.raises(UserError, match=r"is outside 0\.5\.\."):
        CHAT.with_auc(auc)


def test_an_auc_too_close_to_one_half_to_be_told_from_it_is_an_error():
    with pytest.raises(UserError, match=r"AUC of 0\.5001"):
        CHAT.with_auc(0.5001)


@pytest.mark.parametrize("position", [0, 8])
def test_the_auc_of_a_position_outside_the_block_is_an_error(position):
    with pytest.raises(UserError, match=rf"position {position} is outside 1\.\.7"):
        CHAT.prefix_auc(position)


@pytest.mark.parametrize("name", ["chat-dspark", "math-eagle3", "golden-kimi-k3-dspark"])
def test_undistorted_confidence_is_calibrated_at_every_position(name):
    rounds = walk(load_acceptance(name), 1_000, 400)
    for j in range(rounds.confidence.shape[1]):
        check_calibration(rounds.confidence[:, j], rounds.accepted > j, rounds.accepted >= j)


def test_undistorted_confidence_is_calibrated_in_every_bin():
    rounds = walk(CHAT, 1_000, 400)
    bins = (rounds.confidence[:, 0] * 20).astype(int)
    for index in range(20):
        check_calibration(rounds.confidence[:, 0], rounds.accepted > 0, bins == index)


def check_calibration(confidence, accepted, chosen):
    """Given its confidence, every test is a coin of its own, so the sum's error is exact."""
    rate, kept = confidence[chosen], accepted[chosen]
    error = np.sqrt((rate * (1.0 - rate)).sum())
    assert abs((kept - rate).sum()) <= CONFIDENCE_999 * error + 1e-9


def test_over_confidence_and_bias_stretch_and_shift_the_logit():
    places = np.arange(50), np.arange(50)
    true, accepted = CHAT.block(*places)
    seen, same = replace(CHAT, confidence_scale=2.0, confidence_bias=0.5).block(*places)
    logit = np.log(true / (1 - true))
    assert seen.ravel() == pytest.approx(1 / (1 + np.exp(-2 * logit - 0.5)).ravel(), rel=1e-12)
    assert same.tolist() == accepted.tolist()


def test_noise_of_the_confidence_leaves_outcomes_alone_and_has_its_stated_spread():
    requests = np.arange(20_000)
    true, accepted = CHAT.block(requests, requests * 0)
    seen, same = replace(CHAT, confidence_noise=0.7).block(requests, requests * 0)
    noise = np.log(seen / (1 - seen)) - np.log(true / (1 - true))
    assert same.tolist() == accepted.tolist()
    assert stats.kstest(noise[:, 0] / 0.7, "norm").pvalue > 1e-4


def test_levels_and_difficulties_have_their_stated_spread():
    requests = np.arange(4_000)
    law = replace(CHAT, request_sd=1.5, token_sd=0.5)
    logits = []
    for position in range(0, 40, 8):
        confidence, _ = law.block(requests, requests * 0 + position)
        logits.append(np.log(confidence / (1 - confidence)) - law.intercepts()[7])
    spread = np.concatenate(logits, axis=1)
    between, within = spread.mean(axis=1).var(), spread.var(axis=1, ddof=1).mean()
    assert within == pytest.approx(0.5**2, rel=0.02)
    assert between - within / spread.shape[1] == pytest.approx(1.5**2, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": (), "lengths": ()}, "give either rates or lengths"),
        ({"lengths": (1.5,)}, "give either rates or lengths"),
        ({"rates": (0.5, 1.1)}, r"rates must lie in 0\.\.1, got \(0\.5, 1\.1\)"),
        ({"rates": (float("nan"),)}, r"rates must lie in 0\.\.1"),
        ({"request_sd": -1.0}, "request_sd must be 0 or more, got -1"),
        ({"token_sd": float("inf")}, "token_sd must be 0 or more, got inf"),
        ({"confidence_noise": float("nan")}, "confidence_noise must be 0 or more, got nan"),
        ({"confidence_scale": 0.0}, "confidence_scale must be positive"),
        ({"confidence_bias": float("inf")}, "confidence_bias finite"),
    ],
)
def test_a_law_names_the_field_it_cannot_have(changes, message):
    with pytest.raises(UserError, match=f"acceptance 'chat-dspark': .*{message}"):
        replace(CHAT, **changes)
