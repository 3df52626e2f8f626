"""Fits to closed loops made by the formula itself, from known step times and acceptance."""

import numpy as np
import pandas as pd
import pytest

from dspark_sim.core import UserError
from dspark_sim.throughput import fit_results, load_profile
from dspark_sim.throughput.fit import ROUGHNESS

RATES = np.array([0.84, 0.80, 0.75, 0.70, 0.64, 0.58, 0.50])
LENGTHS = np.concatenate(([1.0], 1.0 + np.cumsum(np.cumprod(RATES))))
LOADS = (1, 4, 16, 64, 128)


def closed_loops(ks, loads=LOADS, *, step, told=True, noise=0.0, seed=0):
    """Return what loops of `step`(c, k) ms measure, with relative noise."""
    rng = np.random.default_rng(seed)
    k, c = (axis.ravel() for axis in np.meshgrid(ks, loads, indexing="ij"))
    ms = np.array([step(*pair) for pair in zip(c, k, strict=True)])
    length = LENGTHS[k]
    return pd.DataFrame(
        {
            "source": "formula",
            "num_speculative_tokens": k,
            "concurrency": c,
            "tok_s_user": 1000 * length / ms * np.exp(noise * rng.standard_normal(len(k))),
            "output_tok_s": np.nan,
            "acceptance_length": np.where(
                told & (k > 0), length * np.exp(noise * rng.standard_normal(len(k))), np.nan
            ),
            "position_rates": None,
        }
    )


def affine(c, k):
    """Cost 6 ms and 20 µs a token, 0.5 ms and 10 µs a request to draft."""
    return 6.0 + 0.02 * c * (1 + k) + (k > 0) * (0.5 + 0.01 * c)


def test_exact_loops_are_recovered_exactly_enough():
    fit = fit_results(closed_loops((0, 1, 3, 7), step=affine))
    sizes = fit.measured_sizes()
    assert fit.theta(sizes)["ms"].to_numpy() == pytest.approx(6.0 + 0.02 * sizes, rel=0.03)
    assert fit.lengths()["acceptance_length"].to_numpy() == pytest.approx(LENGTHS[1:], rel=0.01)
    assert fit.draft([1, 128], 7)["ms"].to_numpy() == pytest.approx([0.51, 1.78], abs=0.15)
    assert fit.lengths_known
    assert fit.roughness in ROUGHNESS


def test_a_cost_per_request_is_told_from_a_cost_per_token():
    def step(c, k):
        return 6.0 + 0.01 * c * (1 + k) + 0.05 * c

    fit = fit_results(closed_loops((0, 1, 3, 7), step=step, noise=0.01))
    assert fit.requests([128])["ms"].iloc[0] == pytest.approx(6.4, rel=0.25)
    assert fit.theta([1024])["ms"].iloc[0] == pytest.approx(16.2, rel=0.1)


def test_lengths_that_are_given_fix_the_step_time_of_one_line():
    loops = closed_loops((1,), (8, 16, 32, 64, 128), step=affine, told=False)
    given = fit_results(loops, lengths={1: LENGTHS[1]})
    free = fit_results(loops)
    truth = np.array([affine(c, 1) for c in (8, 16, 32, 64, 128)])
    fitted = given.predict(loops)["step_ms"]
    assert fitted.to_numpy() == pytest.approx(truth, rel=0.02)
    assert (given.lengths_known, free.lengths_known) == (True, False)
    width = [one.lengths().eval("high_length - low_length").iloc[0] for one in (given, free)]
    assert width[0] < 0.04 < 0.2 < width[1]


def test_rates_by_position_are_used_where_they_are_reported():
    loops = closed_loops((0, 7), step=affine, told=False)
    survival = tuple(np.cumprod(RATES))
    loops["position_rates"] = [survival if k else None for k in loops["num_speculative_tokens"]]
    fit = fit_results(loops)
    assert fit.lengths_known
    assert fit.lengths()["rate"].to_numpy() == pytest.approx(RATES, abs=0.05)


def test_without_loops_that_do_not_draft_the_drafter_is_part_of_the_step():
    loops = closed_loops((1, 3, 7), step=affine)
    fit = fit_results(loops)
    assert fit.model.draft_power is None
    truth = [affine(c, k) for k in (1, 3, 7) for c in LOADS]
    assert fit.predict(loops)["step_ms"].to_numpy() == pytest.approx(truth, rel=0.05)


def test_an_autoregressive_drafter_costs_per_token():
    def step(c, k):
        return 6.0 + 0.02 * c * (1 + k) + 0.8 * k

    fit = fit_results(closed_loops((0, 1, 3, 7), step=step), drafter="autoregressive")
    costs = [fit.draft([1], k)["ms"].iloc[0] for k in (1, 4)]
    assert costs == pytest.approx([0.8, 3.2], rel=0.15)


def test_loops_without_drafts_alone_give_a_step_time():
    fit = fit_results(closed_loops((0,), step=affine))
    assert fit.lengths().empty
    assert fit.theta([16])["ms"].iloc[0] == pytest.approx(6.32, rel=0.02)


@pytest.mark.parametrize("told", [True, False])
def test_points_that_are_covered_do_not_change_a_fit_by_what_they_measured(told):
    loops = closed_loops((0, 1, 3, 7), step=affine, told=told, noise=0.03)
    unseen = closed_loops((5,), step=affine)
    wrong = unseen.assign(tok_s_user=1.0, acceptance_length=1.0, output_tok_s=1.0)
    fits = [fit_results(loops, cover=cover) for cover in (unseen, wrong)]
    assert (fits[0].parameters == fits[1].parameters).all()


def dense(c, k):
    """Return the steps of a shipped profile: Llama-3.1-8B on an H100."""
    profile = load_profile("llama3.1-8b-h100")
    drafting = profile.draft_ms(c, k) if k else 0.0
    return float(profile.overhead_ms + profile.verify_ms(c * (1 + k)) + drafting)


def misses(told, seed):
    """Fit noisy loops; return errors at unseen draft lengths, and where three intervals hold."""
    unseen = closed_loops((2, 5), step=dense)
    loops = closed_loops((0, 1, 3, 7), step=dense, told=told, noise=0.03, seed=seed)
    fit = fit_results(loops, cover=unseen)
    found, theta, lengths = fit.predict(unseen), fit.theta(fit.measured_sizes()), fit.lengths()
    verify = np.array([dense(int(size), 0) for size in theta["batch_tokens"]])
    return (
        found["fitted_tok_s_user"] / unseen["tok_s_user"] - 1.0,
        unseen["tok_s_user"].between(found["low_tok_s_user"], found["high_tok_s_user"]).mean(),
        ((verify > theta["low_ms"]) & (verify < theta["high_ms"])).mean(),
        ((lengths["low_length"] < LENGTHS[1:]) & (lengths["high_length"] > LENGTHS[1:])).mean(),
    )


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_unseen_draft_lengths_are_predicted_within_their_intervals(told, seed):
    error, inside, _, _ = misses(told, seed)
    assert error.abs().max() < 0.05
    assert inside == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_intervals_of_95_percent_cover_the_truth_about_that_often(told):
    rate, theta, length = np.array([misses(told, seed)[1:] for seed in range(20)]).mean(axis=0)
    assert rate > 0.9
    assert theta > 0.85  # sizes and lengths of one fit are right or wrong together
    assert length > 0.85


def test_output_is_predicted_by_the_share_that_the_fitted_points_kept():
    loops = closed_loops((0, 3), step=affine)
    loops["output_tok_s"] = loops["tok_s_user"] * loops["concurrency"] * 0.9
    found = fit_results(loops).predict(loops)
    kept = found["fitted_output_tok_s"] / found["fitted_tok_s_user"] / loops["concurrency"]
    assert kept.to_numpy() == pytest.approx(0.9)


def test_one_batch_size_is_not_enough():
    loops = closed_loops((1,), (4,), step=affine)
    with pytest.raises(UserError, match=r"two batch sizes .* all 1 results have 8 tokens"):
        fit_results(loops)


def test_a_length_that_is_impossible_is_refused():
    loops = closed_loops((1,), step=affine, told=False)
    with pytest.raises(UserError, match=r"2\.5 for 1 draft tokens is impossible"):
        fit_results(loops, lengths={1: 2.5})
    with pytest.raises(UserError, match=r"3 for 5 draft tokens .* draft lengths are 1\.\.1"):
        fit_results(loops, lengths={5: 3.0})


def test_an_unknown_drafter_is_told():
    with pytest.raises(UserError, match="unknown drafter 'blok': did you mean 'block'"):
        fit_results(closed_loops((0, 1), step=affine), drafter="blok")
