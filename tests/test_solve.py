import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from dspark_sim.acceptance.published import ACCEPTANCE_LENGTHS, CONDITIONAL_RATES
from dspark_sim.acceptance.solve import (
    Heterogeneity,
    acceptance_length,
    intercepts_for_lengths,
    intercepts_for_rates,
    pooled_rates,
)
from dspark_sim.core import UserError

SPREADS = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (2.0, 0.5)]
DSV4 = ACCEPTANCE_LENGTHS["golden-dsv4-pro-dspark"]
KIMI = ACCEPTANCE_LENGTHS["golden-kimi-k3-dspark"]
Z = np.linspace(-9.0, 9.0, 721)
DENSITY = stats.norm.pdf(Z) / stats.norm.pdf(Z).sum()


def survival_by_request(intercepts, request_sd, token_sd):
    """P(first j tokens accepted | request level Z), on a dense grid instead of by Gauss-Hermite."""
    shift = request_sd * Z[:, None] + token_sd * Z
    rates = np.stack([expit(mu + shift) @ DENSITY for mu in intercepts], axis=1)
    return np.cumprod(rates, axis=1)


def pooled_survival(intercepts, request_sd, token_sd):
    """Survival over rounds of full blocks: a request has one over its length rounds per token."""
    survival = survival_by_request(intercepts, request_sd, token_sd)
    rounds = DENSITY / (1.0 + survival.sum(axis=1))
    return rounds @ survival / rounds.sum()


def pooled_length(intercepts, request_sd=1.0, token_sd=1.0):
    return 1.0 + pooled_survival(intercepts, request_sd, token_sd).sum()


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", CONDITIONAL_RATES)
def test_solved_intercepts_return_the_published_rates(name, spread):
    rates = CONDITIONAL_RATES[name]
    survival = pooled_survival(intercepts_for_rates(Heterogeneity(*spread), rates), *spread)
    conditional = survival / np.concatenate(([1.0], survival[:-1]))
    assert conditional.tolist() == pytest.approx(rates, abs=1e-6)


def test_the_library_and_the_dense_grid_average_alike():
    intercepts = np.array([2.0, 1.0, 0.5])
    survival = pooled_survival(intercepts, 1.0, 1.5)
    het = Heterogeneity(1.0, 1.5)
    assert np.cumprod(pooled_rates(het, intercepts)).tolist() == pytest.approx(survival, abs=1e-6)
    assert acceptance_length(het, intercepts) == pytest.approx(1 + survival.sum(), abs=1e-6)


def test_without_heterogeneity_an_intercept_is_the_logit_of_its_rate():
    rates = (0.9, 0.5, 0.25)
    assert expit(intercepts_for_rates(Heterogeneity(0, 0), rates)).tolist() == pytest.approx(rates)


def test_rates_of_0_and_1_are_kept_exactly():
    intercepts = intercepts_for_rates(Heterogeneity(1, 1), (1.0, 0.5, 0.0))
    assert intercepts[[0, 2]].tolist() == [np.inf, -np.inf]
    assert pooled_rates(Heterogeneity(1, 1), intercepts).tolist() == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("lengths", [DSV4, KIMI], ids=["falls after k = 6", "noisy"])
def test_every_draft_length_has_its_published_acceptance_length(lengths, spread):
    table = intercepts_for_lengths(Heterogeneity(*spread), lengths)
    assert [len(table[k]) for k in table] == list(range(1, 9))
    found = [pooled_length(table[k], *spread) for k in table]
    assert found == pytest.approx(lengths, abs=1e-6)


def test_draft_lengths_up_to_the_peak_share_a_prefix():
    table = intercepts_for_lengths(Heterogeneity(1, 1), DSV4)
    for k in range(1, 7):
        assert table[k].tolist() == table[6][:k].tolist()


def test_beyond_the_peak_a_longer_draft_disturbs_its_own_early_positions():
    table = intercepts_for_lengths(Heterogeneity(1, 1), DSV4)
    assert (table[7][:6] < table[6]).all()
    assert (table[8][:7] < table[7]).all()


def test_a_noisy_curve_shares_the_prefix_wherever_the_published_length_allows_it():
    table = intercepts_for_lengths(Heterogeneity(1, 1), KIMI)
    shared = [k for k in table if table[k].tolist() == table[8][:k].tolist()]
    assert shared == [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize(
    "lengths",
    [(2.5,), (0.5,), (1.5, 3.5), (1.5, 2.0, 4.5), (1.8, float("nan"))],
    ids=["2 tokens more", "below 1", "k = 2 above 3", "k = 3 above 4", "not a number"],
)
def test_impossible_acceptance_lengths_are_an_error(lengths):
    with pytest.raises(UserError, match=r"acceptance lengths .* lies in 1\.\.k\+1"):
        intercepts_for_lengths(Heterogeneity(1, 1), lengths)
