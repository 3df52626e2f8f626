import json

import numpy as np
import pytest
from engine_tables import MAX_SEQS, profiles, sglang_additive, sglang_flat
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.throughput import ImportOptions, export_profile, import_profile, load_profile
from dspark_sim.throughput.formats.sglang import additive_table, flat_table

FLAT = {
    "sample_batch_tokens": [8, 16, 64],
    "sample_steps_per_sec": [100.0, 80.0, 50.0],
    "max_batch_tokens": 128,
}
ADDITIVE = {
    "bias_seconds": 0.006,
    "bs_probes": [1, 8, 64],
    "alpha_seconds": [0.0, 0.0007, 0.004],
    "m_probes": [32, 96, 160],
    "theta_seconds": [0.0, 0.0004, 0.0011],
}


def read(folder, table, **options):
    path = folder / "sps.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table, indent=1))
    return import_profile(path, ImportOptions(**options))


def test_a_flat_table_is_read_by_the_floor_probe_everywhere(tmp_path):
    loaded = read(tmp_path, FLAT)
    assert (loaded.lookup, loaded.drafter, loaded.draft_in_verify) == ("floor", "block", True)
    assert loaded.max_num_batched_tokens == 128
    for tokens in range(1, 129):
        assert loaded.verify_ms(tokens) == pytest.approx(sglang_flat(FLAT, tokens))
    with pytest.raises(UserError, match="covers 1 to 128 batch tokens"):
        loaded.verify_ms(129)


def test_an_additive_table_is_interpolated_and_held_at_its_ends(tmp_path):
    loaded = read(tmp_path, ADDITIVE, keys={"max_num_seqs": 100, "max_num_batched_tokens": 500})
    assert loaded.lookup == "linear"
    for requests in (1, 2, 8, 30, 64, 100):
        for tokens in (1, 31, 32, 64, 96, 160, 161, 500):
            step = loaded.step_ms(requests, tokens)
            assert step == pytest.approx(sglang_additive(ADDITIVE, requests, tokens))


def test_what_the_file_lacks_is_assumed_and_told_and_may_be_given(tmp_path):
    loaded = read(tmp_path, FLAT)
    assert (loaded.name, loaded.model, loaded.max_num_seqs) == ("sps", "not stated", 256)
    assert "max_num_seqs = 256, kv_tokens = unlimited" in loaded.provenance["assumed"]
    given = {"gpu": "H100", "kv_tokens": 9000, "provenance": {"licence": "mine"}}
    told = read(tmp_path, FLAT, name="mine", keys=given)
    assert (told.name, told.gpu, told.kv_tokens) == ("mine", "H100", 9000)
    assert told.provenance["given"] == "Given at import: gpu = H100, kv_tokens = 9000."
    assert told.provenance["licence"] == "mine"
    assert "kv_tokens" not in told.provenance["assumed"]


def test_a_negative_alpha_moves_into_theta(tmp_path):
    table = ADDITIVE | {"alpha_seconds": [-0.001, 0.0, 0.003]}
    loaded = read(tmp_path, table)
    assert loaded.request_ms([1, 8]).tolist() == pytest.approx([0.0, 1.0])
    assert loaded.step_ms(8, 96) == pytest.approx(sglang_additive(table, 8, 96))


@settings(max_examples=20)
@given(one=profiles())
def test_an_exported_additive_table_answers_the_profile_everywhere(one):
    length = 0 if one.drafter == "none" else 3
    table = json.loads(json.dumps(additive_table(one, length, 0)))
    requests = np.arange(1, MAX_SEQS + 1)
    tokens = np.arange(one.token_range[0], one.token_range[1] + 1)
    step = one.step_ms(requests[:, None], tokens, 0, requests[:, None], length)
    engine = [[sglang_additive(table, r, m) for m in tokens] for r in requests]
    assert np.allclose(engine, step, rtol=1e-9)
    assert table["bias_seconds"] > 0


@settings(max_examples=20)
@given(one=profiles())
def test_an_exported_flat_table_holds_a_staircase_exactly_and_a_line_within_a_half_percent(one):
    length = 0 if one.drafter == "none" else 3
    table = flat_table(one, length, 0)
    tokens = np.arange(one.token_range[0], one.token_range[1] + 1)
    requests = np.minimum(-(-tokens // (length + 1)), MAX_SEQS)
    step = one.step_ms(requests, tokens, 0, requests, length)
    error = np.abs([sglang_flat(table, m) for m in tokens] / step - 1.0)
    stepped = (one.regime(tokens) == "captured") | (one.lookup == "floor")
    assert error[stepped].max(initial=0.0) < 1e-12
    assert error.max() < 0.0051


@settings(max_examples=20)
@given(one=profiles(), form=st.sampled_from(["sglang", "sglang-additive"]))
def test_a_written_table_reads_back_to_the_same_lookups(tmp_path_factory, one, form):
    path = export_profile(one, tmp_path_factory.mktemp("out") / "sps.json", form)
    table = json.loads(path.read_text(encoding="utf-8"))
    again = import_profile(path)
    for tokens in range(1, one.token_range[1] + 1):
        if form == "sglang":
            assert again.verify_ms(tokens) == pytest.approx(sglang_flat(table, tokens))
        else:
            step = again.step_ms([1, 5, MAX_SEQS], tokens)
            engine = [sglang_additive(table, r, tokens) for r in (1, 5, MAX_SEQS)]
            assert step.tolist() == pytest.approx(engine)


def test_the_context_of_the_requests_goes_into_alpha():
    one = load_profile("llama3.1-8b-h100")
    table = additive_table(one, 7, 2048)
    step = one.step_ms(8, 64, 8 * 2048, 8, 7)
    assert sglang_additive(table, 8, 64) == pytest.approx(step)


def test_the_captured_cliff_survives_the_exports():
    one = load_profile("dsv4-flash-b300-tp4")
    table = additive_table(one, 7, 0)
    for tokens in (1023, 1024, 1025, 1536, 3000):
        step = one.step_ms(128, tokens, 0, 128, 7)
        assert sglang_additive(table, 128, tokens) == pytest.approx(float(step))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"sample_batch_tokens": [8, 8, 16]}, r"line 2: sample_batch_tokens\[1\] must be more"),
        ({"sample_batch_tokens": [16, 8, 64]}, "got 8 after 16"),
        ({"sample_batch_tokens": [0, 8, 64]}, r"sample_batch_tokens\[0\] must be at least 1"),
        ({"sample_batch_tokens": [8, 16.5, 64]}, "must be a whole number, got 16.5"),
        ({"sample_batch_tokens": [8, 16]}, "line 6: sample_steps_per_sec must have as many"),
        ({"sample_steps_per_sec": [1, 0, 1]}, r"sample_steps_per_sec\[1\] must be above 0, got 0"),
        ({"sample_steps_per_sec": [1, "fast", 1]}, r"\[1\] must be a number, got \"fast\""),
        ({"sample_steps_per_sec": [1, True, 1]}, "must be a number, got true"),
        ({"sample_steps_per_sec": [1, float("nan"), 1]}, "must be finite, got nan"),
        ({"sample_steps_per_sec": []}, "line 7: sample_steps_per_sec must not be empty"),
        ({"sample_steps_per_sec": {}}, "must be a list, got an object"),
        ({"max_batch_tokens": 63}, "line 12: max_batch_tokens must be at least the largest probe"),
        ({"max_batch_tokens": None}, "max_batch_tokens must be a number, got null"),
    ],
)
def test_a_faulty_flat_table_names_line_and_key(tmp_path, table, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        read(tmp_path, FLAT | table)
    assert str(caught.value).startswith("sps.json line")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"m_probes": [1, 2]}, "theta_seconds must have as many entries as m_probes, got 3 for 2"),
        ({"bias_seconds": -1}, "line 2: bias_seconds must be at least 0, got -1"),
        ({"theta_seconds": [-1, 0, 1]}, "theta_seconds leaves a step of -0.994 s"),
        ({"bs_probes": "all"}, "line 3: bs_probes must be a list, got a text"),
    ],
)
def test_a_faulty_additive_table_names_line_and_key(tmp_path, table, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, ADDITIVE | table)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"sample_batch_tokens": [1],\n', "sps.json line 2: no valid JSON"),
        ('{"sample_batch_tokens": [1],\n"sample_batch_tokens": [2]}', "line 2: the key 'sample_b"),
        ('{"sample_batch_tokens": [1]}', "line 1: the key 'sample_steps_per_sec' is missing"),
    ],
)
def test_a_file_that_is_no_table_names_its_line(tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, text)
