import json

import numpy as np
import pytest

from dspark_sim.core import UserError
from dspark_sim.throughput import read_results

RESULT = {
    "model_id": "m",
    "max_concurrency": 16,
    "mean_tpot_ms": 8.0,
    "output_throughput": 1900.0,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 3000,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2],
}
TABLE = "policy,concurrency,tok_s_user,output_tok_s,acceptance_length\n"


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="r.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    return write_file


def changed(**values):
    result = {**RESULT, **values}
    return {key: value for key, value in result.items() if value is not ...}


def test_a_result_of_vllms_benchmark_is_one_closed_loop(write):
    results = read_results([write(RESULT)])
    row = results.points.iloc[0]
    assert row["num_speculative_tokens"] == 3
    assert row["concurrency"] == 16
    assert row["tok_s_user"] == 125.0
    assert row["output_tok_s"] == 1900.0
    assert row["acceptance_length"] == 2.5
    assert row["position_rates"] == (0.8, 0.5, 0.2)
    assert (results.model, results.files) == ("m", ("r.json",))


@pytest.mark.parametrize(
    "told",
    [
        {"num_speculative_tokens": 3},
        {"num_speculative_tokens": "3"},
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
        {"speculative_config": '{"num_speculative_tokens": 3}'},
        {"speculative_config.num_speculative_tokens": 3},
        {
            "speculative_config": {
                "num_speculative_tokens": 7,
                "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 3], [65, 256, 0]],
            }
        },
    ],
)
def test_settings_in_a_result_tell_its_draft_length(write, told):
    plain = changed(spec_decode_num_drafts=..., spec_decode_draft_tokens=..., **told)
    assert read_results([write(plain)]).points["num_speculative_tokens"].tolist() == [3]


def test_no_speculative_config_means_no_drafts(write):
    plain = changed(
        speculative_config=None, spec_decode_num_drafts=..., spec_decode_draft_tokens=...,
        spec_decode_acceptance_length=..., spec_decode_per_position_acceptance_rates=...,
    )  # fmt: skip
    assert read_results([write(plain)]).points["num_speculative_tokens"].tolist() == [0]


@pytest.mark.parametrize("name", ["r.json", "r", "r*"])
def test_a_file_that_does_not_tell_its_draft_length_is_told_it(write, name):
    path = write(changed(spec_decode_draft_tokens=...))
    assert read_results([path], {name: 3}).points["num_speculative_tokens"].tolist() == [3]


def test_a_table_tells_draft_lengths_by_policy_or_column(write):
    rows = "none,1,100,,\nfixed:3,1,200,190,2.9\nfixed_k5,1,250,,\nk7,1,240,,\nvllm,1,260,,\n"
    results = read_results([write(TABLE + rows, "t.csv")])
    assert results.points["num_speculative_tokens"].tolist() == [0, 3, 5, 7]
    assert results.left_out == ("vllm",)
    assert results.points["acceptance_length"].tolist()[1] == 2.9
    assert np.isnan(results.points["output_tok_s"].iloc[0])
    column = "policy,concurrency,interactivity_tok_s_user,num_speculative_tokens\nours,8,90,4\n"
    told = read_results([write(column, "u.csv")]).points
    assert told["num_speculative_tokens"].tolist() == [4]


def test_a_policy_that_is_not_known_can_be_told(write):
    path = write(TABLE + "mtp-1,8,90,700,1.85\n", "t.csv")
    points = read_results([path], {"mtp*": 1}).points
    assert points["num_speculative_tokens"].tolist() == [1]


def test_the_mean_over_users_is_preferred_in_our_own_tables(write):
    text = "policy,concurrency,tok_s_user,tok_s_user_mean\nfixed:3,8,140,130\n"
    assert read_results([write(text, "sweep.csv")]).points["tok_s_user"].tolist() == [130.0]


MISTAKES = {
    "no JSON": ('{"a": ', "line 1", "no valid JSON"),
    "a list": ("[1]", "a JSON object is needed"),
    "open loop": (changed(max_concurrency=...), "max_concurrency is missing", "closed loops"),
    "null load": (changed(max_concurrency=None), "max_concurrency is missing"),
    "half load": (changed(max_concurrency=1.5), "line 3", "max_concurrency", "whole number"),
    "no TPOT": (changed(mean_tpot_ms=...), "'mean_tpot_ms' is missing"),
    "TPOT as text": (changed(mean_tpot_ms="8"), "line 4", "mean_tpot_ms must be a number"),
    "TPOT 0": (changed(mean_tpot_ms=0), "mean_tpot_ms must be above 0"),
    "infinite TPOT": (json.dumps(changed(mean_tpot_ms=float("inf"))), "must be finite"),
    "negative TPOT": (changed(mean_tpot_ms=-1.0), "mean_tpot_ms must be at least 0"),
    "draft length": (
        changed(spec_decode_draft_tokens=...),
        "r.json", "'num_speculative_tokens' is missing", "--draft-len 'r.json=3'",
    ),
    "adaptive": (changed(spec_decode_draft_tokens=2500), "2.50 per draft", "fixed draft length"),
    "trimmed": (
        changed(spec_decode_draft_tokens=2100, num_speculative_tokens=3), "2.10 per draft, not 3",
    ),
    "settings": (changed(num_speculative_tokens="many"), "num_speculative_tokens", "'many'"),
    "broken settings": (changed(speculative_config="{"), "speculative_config is no valid JSON"),
    "length": (changed(spec_decode_acceptance_length=4.5), "lie in 1..4", "got 4.5"),
    "rates": (
        changed(spec_decode_per_position_acceptance_rates=[80.0]), "shares in 0..1", "got 80",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_wrong_result_is_told_with_file_and_key(write, case):
    content, *words = MISTAKES[case]
    with pytest.raises(UserError) as error:
        read_results([write(content)])
    for word in ("r.json", *words):
        assert word in str(error.value)


TABLES = {
    "no rate": ("policy,concurrency\nnone,1\n", "line 1", "'tok_s_user' is missing"),
    "no load": ("policy,tok_s_user\nnone,1\n", "line 1", "'concurrency' is missing"),
    "empty rate": (TABLE + "none,1,,,\n", "line 2", "tok_s_user is empty"),
    "text": (TABLE + "none,1,fast,,\n", "line 2", "tok_s_user must be a number", "'fast'"),
    "zero": (TABLE + "none,1,5,,\nnone,2,0,,\n", "line 3", "tok_s_user must be above 0"),
    "ragged": (TABLE + "none,1,5\n", "line 2", "5 values are needed, got 3"),
    "length": (TABLE + "fixed:1,1,5,,2.5\n", "line 2", "acceptance_length", "1..2"),
    "load": (TABLE + "none,0.5,5,,\n", "line 2", "concurrency"),
    "nothing": (TABLE, "empty"),
    "none fixed": (TABLE + "vllm,1,5,,\n", "fixed and known"),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_wrong_table_is_told_with_file_and_line(write, case):
    content, *words = TABLES[case]
    with pytest.raises(UserError) as error:
        read_results([write(content, "t.csv")])
    for word in words:
        assert word in str(error.value)


def test_a_draft_length_that_contradicts_the_file_is_a_mistake(write):
    with pytest.raises(UserError, match="drafts 3 tokens a step, but --draft-len says 5"):
        read_results([write(RESULT)], {"r.json": 5})


def test_a_draft_length_for_nothing_names_what_there_is(write):
    with pytest.raises(UserError, match=r"unknown result 's\.json': did you mean 'r\.json'"):
        read_results([write(RESULT)], {"s.json": 3})


def test_results_of_two_models_are_not_mixed(write):
    other = write(changed(model_id="n"), "s.json")
    with pytest.raises(UserError, match="several models, m, n"):
        read_results([write(RESULT), other])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"absent\.json: cannot be read"):
        read_results([tmp_path / "absent.json"])
