import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_throughput_profile import profile, table

from dspark_sim.throughput import additive_form, fit_additive, load_profile, with_additive

SHIPPED = ("dsv4-flash-b300-tp4", "llama3.1-8b-h100", "qwen3-8b-h20", "qwen3.5-35b-a3b-h20")


def truth(requests, tokens, kv):
    return 5.0 + 0.02 * requests + 0.03 * np.maximum(tokens, 40) + 2e-5 * kv


def grid(requests=(1, 2, 4, 8), lengths=(0, 1, 3, 7), contexts=(512, 2048)):
    rows = [(r * (k + 1), r, r * c) for r in requests for k in lengths for c in contexts]
    frame = pd.DataFrame(rows, columns=["batch_tokens", "num_requests", "kv_tokens_read"])
    frame = frame.sort_values(list(frame), ignore_index=True)
    frame["ms"] = truth(frame["num_requests"], frame["batch_tokens"], frame["kv_tokens_read"])
    return frame


def test_an_additive_engine_is_recovered_exactly():
    form = fit_additive(grid())
    assert form.kappa_ms_per_kv_token == pytest.approx(2e-5)
    assert form.alpha["ms"].tolist() == pytest.approx([0, 0.02, 0.06, 0.14])
    assert form.theta["ms"].min() == 0
    assert form.bias_ms == pytest.approx(5.0 + 0.02 + 0.03 * 40)
    assert form.residuals["error"].abs().max() < 1e-12
    assert form.wrong().empty
    assert form.notes == ()


def test_the_form_answers_between_points_by_interpolation_and_holds_its_ends():
    form = fit_additive(grid())
    assert form.step_ms(3, 12, 1000) == pytest.approx(truth(3, 12, 1000))
    assert form.step_ms(100, 10_000) == form.step_ms(8, 64)
    assert form.step_ms([1, 8], [8, 8]).shape == (2,)


def test_where_the_form_is_wrong_is_told_with_requests_batch_and_context():
    rows = grid()
    rows.loc[(rows["batch_tokens"] == 8) & (rows["num_requests"] == 8), "ms"] *= 1.5
    form = fit_additive(rows)
    worst = form.wrong().iloc[0]
    assert (worst["num_requests"], worst["batch_tokens"]) == (8, 8)
    assert worst["error"] < -0.05
    report = form.report()
    assert f"wrong by more than 5% at {len(form.wrong())} of 32 points:" in report
    assert "at R = 8, M = 8, 4,096 KV tokens:" in report
    assert form.summary()["wrong"][0]["batch_tokens"] == 8


def test_a_long_list_of_wrong_points_is_cut_and_counted():
    rows = grid(contexts=(512,))
    rows["ms"] *= np.where(np.arange(len(rows)) % 2, 1.0, 2.0)
    assert fit_additive(rows).report(limit=0.0).splitlines()[-1].endswith("more")


@given(st.lists(st.floats(0.9, 1.1), min_size=16, max_size=16))
def test_no_other_form_has_less_squared_relative_error(noise):
    rows = grid(contexts=(512,))
    rows["ms"] *= noise
    form = fit_additive(rows)
    best = np.square(form.residuals["error"]).sum()
    requests = pd.get_dummies(rows["num_requests"]).to_numpy(float)
    tokens = pd.get_dummies(rows["batch_tokens"]).to_numpy(float)
    design = np.hstack([requests, tokens]) / rows[["ms"]].to_numpy()
    answer, *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
    assert best == pytest.approx(np.square(design @ answer - 1.0).sum(), abs=1e-12)
    assert (form.alpha["ms"] >= 0).all()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_table_without_requests_is_fitted_exactly(name):
    one = load_profile(name)
    form = additive_form(one)
    assert form.residuals["error"].abs().max() < 1e-12
    assert form.kappa_ms_per_kv_token == one.context_ms_per_kv_token
    held = 64 if one.requests is not None else 0
    at = one.verify["batch_tokens"].to_numpy()
    assert form.step_ms(held, at) == pytest.approx(one.step_ms(held, at) - one.overhead_ms)


def test_context_that_no_batch_tells_keeps_the_profiles_own_kappa():
    toy = profile(verify=table([1, 16], [4.0, 6.0], kv_tokens_read=[1000, 2000]))
    form = additive_form(toy)
    assert form.kappa_ms_per_kv_token == 1e-3
    assert "kappa = 0.001 is taken as given" in form.report()


def test_a_kappa_below_zero_is_held_at_zero_and_told():
    rows = grid()
    rows["ms"] -= 4e-5 * rows["kv_tokens_read"]
    form = fit_additive(rows)
    assert form.kappa_ms_per_kv_token == 0
    assert "kappa came out below zero (-2e-05 ms per KV token)" in form.report()


def test_requests_that_share_no_batch_are_told_apart_by_one_smooth_theta():
    # 3 and 6 requests never meet the batches of 1, 2, 4 and 8.
    form = fit_additive(grid(requests=(1, 2, 3, 4, 6, 8), lengths=(0, 1, 3, 7)))
    assert "1, 2, 4, 8 | 3, 6" in form.report()
    assert form.residuals["error"].abs().max() < 1e-12
    alpha = dict(zip(form.alpha["num_requests"], form.alpha["ms"], strict=True))
    assert alpha[3] == pytest.approx(0.04, abs=0.02)
    assert alpha[6] - alpha[3] == pytest.approx(0.06, abs=1e-9)


def test_a_part_beyond_all_others_keeps_a_smallest_alpha_of_zero():
    rows = pd.DataFrame(
        {
            "batch_tokens": [2, 4, 352, 384],
            "num_requests": [2, 2, 64, 64],
            "ms": [3.0, 4.0, 9.0, 9.5],
        }
    )
    form = fit_additive(rows)
    assert form.alpha["ms"].tolist() == [0.0, 0.0]
    assert form.step_ms([2, 64], [4, 384]).tolist() == pytest.approx([4.0, 9.5])


def test_a_profile_with_its_additive_terms_answers_the_form():
    base = profile(
        verify=grid(), requests=None, capture_limit=None, lookup="linear",
        context_ms_per_kv_token=0.0,
    )  # fmt: skip
    form = additive_form(base)
    whole = with_additive(base, form)
    rows = whole.verify
    step = whole.step_ms(rows["num_requests"], rows["batch_tokens"], rows["kv_tokens_read"])
    assert step == pytest.approx(rows["ms"] + 0.5)
    again = additive_form(whole)
    assert again.alpha["ms"].tolist() == pytest.approx(form.alpha["ms"].tolist())


def test_a_table_of_one_row_is_its_own_form():
    form = fit_additive(pd.DataFrame({"batch_tokens": [8], "ms": [4.0]}))
    assert form.bias_ms == 4.0
    assert form.step_ms(1, 100) == 4.0
