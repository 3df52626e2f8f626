import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.throughput import EngineProfile, load_profile, summarize_profile


def profile(**changes):
    keys = {
        "name": "toy",
        "engine": "none",
        "model": "toy",
        "gpu": "paper",
        "num_gpus": 1,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "kv_tokens": None,
        "capture_limit": 16,
        "lookup": "captured",
        "drafter": "block",
        "overhead_ms": 0.5,
        "context_ms_per_kv_token": 1e-3,
        "draft_context_ms_per_kv_token": 1e-4,
        "provenance": {"source": "a test"},
        "verify": pd.DataFrame(
            {"batch_tokens": [1, 8, 16, 32, 64], "ms": [4.0, 5.0, 6.0, 30.0, 40.0]}
        ),
        "draft": pd.DataFrame({"num_requests": [1, 8], "draft_len": [3, 3], "ms": [1.0, 2.0]}),
        "requests": pd.DataFrame({"num_requests": [2, 8], "ms": [0.2, 0.8]}),
    }
    return EngineProfile(**(keys | changes))


def table(sizes, ms, **columns):
    return pd.DataFrame({"batch_tokens": sizes, "ms": ms, **columns})


def test_a_step_is_the_sum_of_its_terms():
    step = profile().step_ms(
        num_requests=4, batch_tokens=12, kv_tokens_read=100, drafting_requests=3, draft_len=3
    )
    assert step == pytest.approx(0.5 + 2.0 + 6.0 + 0.4 + 100 * 1.1e-3)


def test_a_step_that_drafts_nothing_pays_no_draft_and_no_draft_context():
    step = profile().step_ms(4, 12, 100, drafting_requests=3, draft_len=0)
    assert step == pytest.approx(0.5 + 6.0 + 0.4 + 0.1)


def test_steps_per_second_is_the_inverse_of_overhead_draft_and_verify():
    toy = profile(requests=None)
    assert toy.steps_per_second(8) == pytest.approx(1000 / 5.5)
    assert toy.steps_per_second(8, num_requests=8, draft_len=3) == pytest.approx(1000 / 7.5)


def test_arguments_broadcast():
    step = profile().step_ms(np.arange(1, 9)[:, None], np.arange(65)[None, :])
    assert step.shape == (8, 65)


def test_the_additive_term_is_held_below_its_first_point_and_zero_for_nobody():
    assert profile().request_ms([0, 1, 2, 5]).tolist() == pytest.approx([0, 0.2, 0.2, 0.5])


def test_the_context_of_the_measurement_is_subtracted():
    toy = profile(verify=table([1, 16], [4.0, 6.0], kv_tokens_read=[1000, 2000]))
    assert toy.verify_ms([1, 16]).tolist() == pytest.approx([3.0, 4.0])
    assert toy.step_ms(0, 16, 2000) == pytest.approx(0.5 + 6.0)


def test_a_context_term_that_eats_the_whole_step_is_an_error():
    with pytest.raises(UserError, match="leaves nothing of the 4 ms at 1 batch_tokens"):
        profile(verify=table([1, 16], [4.0, 6.0], kv_tokens_read=[9000, 2000]))


def test_regimes_are_named():
    assert profile().regime([0, 16, 17, 64, 65]).tolist() == [
        "captured",
        "captured",
        "eager",
        "eager",
        "extended",
    ]
    linear = profile(lookup="linear")
    assert linear.regime([1, 17, 65]).tolist() == ["table", "table", "extended"]


def test_outside_the_table_is_an_error_unless_extension_is_asked_for():
    with pytest.raises(UserError, match="covers 1 to 64 batch tokens, not 65"):
        profile().verify_ms([3, 65])
    assert profile().verify_ms(65, extend=True) == pytest.approx(40 + 10 / 32)
    with pytest.raises(UserError, match=r"verify.csv covers 8 to 64 batch tokens, not 2"):
        profile(lookup="floor", verify=table([8, 64], [1.0, 2.0])).verify_ms(2)


def test_no_eager_points_is_an_error_only_when_an_eager_batch_is_looked_up():
    short = profile(verify=table([1, 16], [4.0, 6.0]))
    assert short.verify_ms(16) == 6.0
    with pytest.raises(UserError, match="covers 1 to 16 batch tokens, not 17"):
        short.verify_ms(17)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda p: p.draft_ms(9, 3), "draft.csv covers 1 to 8 requests, not 9"),
        (lambda p: p.request_ms(9), "requests.csv covers up to 8 requests, not 9"),
        (lambda p: p.prefill_ms(100), "has no prefill.csv"),
        (lambda p: p.tables(3, max_requests=9), "covers 1 to 8 requests, not 9"),
    ],
)
def test_every_gap_is_one_sentence(call, sentence):
    with pytest.raises(UserError, match=sentence):
        call(profile())


def test_a_draft_longer_than_all_measured_ones_is_an_error():
    lengths = pd.DataFrame({"num_requests": [8, 8], "draft_len": [1, 4], "ms": [1.0, 2.0]})
    with pytest.raises(UserError, match="draft lengths up to 4, not 5"):
        profile(draft=lengths).draft_ms(2, 5)
    assert profile(draft=lengths).draft_ms(2, 5, extend=True) == pytest.approx(2 + 1 / 3)


def test_a_profile_without_a_drafter_cannot_draft():
    bare = profile(drafter="none", draft=None)
    assert bare.draft_ms(8, 0) == 0
    with pytest.raises(UserError, match="has no drafter, so draft_len can only be 0, not 7"):
        bare.draft_ms(8, 7)


def test_a_drafter_inside_verify_costs_nothing_more():
    inside = profile(draft=None, draft_in_verify=True)
    assert inside.draft_ms(8, 7) == 0
    assert inside.tables(7).draft_ns.max() == 0


def test_a_prefill_table_is_interpolated():
    prefill = pd.DataFrame({"tokens": [100, 200], "ms": [10.0, 30.0]})
    assert profile(prefill=prefill).prefill_ms([100, 150]).tolist() == [10, 20]
    with pytest.raises(UserError, match="covers 100 to 200 tokens, not 300"):
        profile(prefill=prefill).prefill_ms(300)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"verify": table([], [])}, "verify table: the table is empty"),
        ({"verify": table([1, 16], [4, np.nan])}, "verify table row 2: ms must be a finite number"),
        ({"verify": table([1, 16], [4, -1])}, "verify table row 2: ms must be .* above 0, got -1"),
        ({"verify": table([1, 16], [0, 1])}, "row 1: ms must be a finite number above 0, got 0"),
        ({"verify": table([16, 1], [4, 5])}, "row 2: batch_tokens 1 comes after 16"),
        ({"verify": table([1, 16, 16], [4, 5, 6])}, "row 3: batch_tokens 16 is given twice"),
        ({"verify": table([1.5, 16], [4, 5])}, "batch_tokens must be a whole number"),
        ({"verify": table([0, 16], [4, 5])}, "batch_tokens must be .* of at least 1, got 0"),
        ({"verify": table([1, 16], [4, 5], p10_ms=[5, 5])}, "row 1: ms must lie between"),
        ({"verify": table([1, 16], [4, 5], p90_m=[5, 5])}, "unknown column 'p90_m'.*'p90_ms'"),
        ({"verify": pd.DataFrame({"ms": [1.0]})}, "the column 'batch_tokens' is missing"),
        ({"verify": table([1, 32], [4, 5])}, "no row at the capture_limit, 16 tokens"),
        ({"draft": None}, "drafter = 'block' needs a draft.csv"),
        ({"drafter": "none"}, "contradicts drafter = 'none'"),
        ({"lookup": "captured "}, "unknown lookup 'captured '.*did you mean 'captured'"),
        ({"num_gpus": 0}, "num_gpus must be greater than 0, got 0"),
        ({"overhead_ms": float("nan")}, "overhead_ms must be a finite number, got nan"),
        ({"kv_tokens": "lots"}, "kv_tokens must be a valid integer or 'unlimited', got 'lots'"),
        ({"provenance": {"method": "guess"}}, "needs a 'source'"),
        ({"drafter": "none", "draft": None, "draft_in_verify": True}, "needs a drafter"),
    ],
)
def test_a_faulty_profile_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        profile(**changes)
    assert "\n" not in str(caught.value)


def test_draft_rows_must_rise_within_each_length_only():
    rows = pd.DataFrame(
        {"num_requests": [1, 8, 1, 8], "draft_len": [1, 1, 4, 4], "ms": [1.0, 2.0, 3.0, 4.0]}
    )
    assert profile(draft=rows).draft_ms(8, [1, 4]).tolist() == [2, 4]
    with pytest.raises(UserError, match="row 3: num_requests 8 is given twice"):
        profile(draft=rows.iloc[[0, 1, 1]])


def test_the_callers_table_is_not_shared():
    verify = table([1, 16], [4.0, 6.0])
    toy = profile(verify=verify)
    verify.loc[0, "ms"] = 99.0
    assert toy.verify_ms(1) == 4.0


def test_a_profile_survives_replace_and_pickle():
    floor = replace(profile(), lookup="floor")
    assert floor.verify_ms(15) == 5.0
    assert pickle.loads(pickle.dumps(floor)).verify_ms(15) == 5.0


def test_the_summary_shows_both_sides_of_the_cliff():
    summary = summarize_profile(profile(), num_requests=8)
    assert summary["batch_tokens"].tolist() == [1, 2, 4, 8, 16, 17, 32, 64]
    after = summary.set_index("batch_tokens").loc[17]
    assert after["regime"] == "eager"
    assert after["step_ms"] == pytest.approx(0.5 + 30 + 2 + 0.8)
    assert after["verified_tok_s"] == pytest.approx(17 * after["steps_per_second"])


@pytest.fixture(scope="module")
def shipped():
    names = ("dsv4-flash-b300-tp4", "llama3.1-8b-h100", "qwen3-8b-h20")
    loaded = [load_profile(name) for name in names]
    return [(one, one.tables(max_draft_len=7)) for one in loaded]


@settings(deadline=None)
@given(data=st.data())
def test_dense_tables_equal_the_profile_at_every_point(shipped, data):
    one, tables = data.draw(st.sampled_from(shipped))
    requests = data.draw(st.integers(0, one.max_num_seqs))
    drafting = data.draw(st.integers(0, requests))
    tokens = data.draw(st.integers(0, one.max_num_batched_tokens))
    length = data.draw(st.integers(0, 7))
    kv = data.draw(st.integers(0, 2_000_000))
    assert abs(tables.verify_ns[tokens] - one.verify_ms(tokens) * 1e6) <= 0.51
    assert abs(tables.draft_ns[drafting, length] - one.draft_ms(drafting, length) * 1e6) <= 0.51
    assert abs(tables.request_ns[requests] - one.request_ms(requests) * 1e6) <= 0.51
    exact = one.step_ms(requests, tokens, kv, drafting, length) * 1e6
    assert abs(tables.step_ns(requests, tokens, kv, drafting, length) - exact) <= 5 * 0.51
