from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dspark_sim.core import UserError
from dspark_sim.throughput import ImportOptions, import_profile

SHARED = Path(__file__).parents[2] / "shared" / "data" / "profiles"
LAYERS = 4
META = "vllm_version: 0.19.0\nhardware: RTX4090\nmodel: org/small\nvariant: bf16\n" + (
    "engine_effective:\n  max_num_seqs: 4\n  max_num_batched_tokens: 64\n"
)


def dense_us(tokens):
    return {
        "embedding": 3.0,
        "layernorm": 2.0 + 0.01 * tokens,
        "qkv_proj": 40.0 + tokens,
        "final_layernorm": 2.0,
    }


def bundle(folder, **changes):
    """Write a small profile folder; `changes` replaces or adds files by their stem."""
    folder.mkdir(exist_ok=True)
    sizes = (1, 8, 64)
    dense = [f"{name},{m},{us}" for m in sizes for name, us in dense_us(m).items()]
    heads = [f"lm_head,{n},{100 + n}\nsampler,{n},{5 + n}" for n in (1, 4)]
    attention = [f"0,0,{n},{c},{2 + 0.001 * n * c}" for n in (1, 2, 4) for c in (16, 512)]
    files = {
        "dense": "layer,tokens,time_us\n" + "\n".join(dense),
        "per_sequence": "layer,sequences,time_us\n" + "\n".join(heads),
        "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
        + "\n".join([*attention, "16,0,0,0,9.0", "64,0,0,0,20.0", "64,512,0,0,99.0"]),
    }
    for name, text in (files | changes).items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def read(folder, **options):
    return import_profile(folder, ImportOptions(**{"num_layers": LAYERS, **options}))


def step_us(requests, tokens, context):
    """Sum the layers by hand."""
    layer = dense_us(tokens)
    inner = 2 * layer["layernorm"] + layer["qkv_proj"] + 2 + 0.001 * requests * context
    once = layer["embedding"] + layer["final_layernorm"] + 100 + tokens + 5 + requests
    return LAYERS * inner + once


def test_layers_are_summed_to_a_step(tmp_path):
    loaded = read(bundle(tmp_path / "tp2"))
    for requests, tokens, context in ((1, 1, 16), (2, 8, 512), (4, 64, 100), (4, 36, 100)):
        step = loaded.step_ms(requests, tokens, requests * context)
        assert step == pytest.approx(step_us(requests, tokens, context) / 1000)
    assert "misses a step by at most 0.0%" in loaded.provenance["method"]


def test_a_prompt_in_a_worker_of_its_own_has_one_row_of_the_head(tmp_path):
    loaded = read(bundle(tmp_path / "tp2"))
    layer = dense_us(64)
    inner = 2 * layer["layernorm"] + layer["qkv_proj"] + 20
    once = layer["embedding"] + layer["final_layernorm"] + 101
    assert loaded.prefill_ms(64) == pytest.approx((LAYERS * inner + once) / 1000)
    assert loaded.prefill["tokens"].tolist() == [16, 64]


def test_the_header_comes_from_the_meta_file_and_the_folders_name(tmp_path):
    folder = bundle(tmp_path / "tp2")
    (tmp_path / "meta.yaml").write_text(META, encoding="utf-8")
    loaded = read(folder)
    assert (loaded.model, loaded.gpu, loaded.dtype) == ("org/small", "RTX4090", "bf16")
    assert (loaded.num_gpus, loaded.max_num_seqs) == (2, 4)
    assert (loaded.drafter, loaded.lookup) == ("none", "linear")


def test_newer_tables_with_query_lengths_are_read_too(tmp_path):
    head = "layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us\n"
    rows = "".join(
        f"attention,0,0,{n},{c},1,{2 + 0.001 * n * c}\n" for n in (1, 2, 4) for c in (16, 512)
    )
    loaded = read(bundle(tmp_path / "tp1", attention=head + rows + "attention,0,0,4,512,8,777\n"))
    assert loaded.step_ms(2, 8, 1024) == pytest.approx(step_us(2, 8, 512) / 1000)
    assert loaded.prefill is None


def test_experts_are_charged_as_if_all_that_were_measured_are_touched(tmp_path):
    moe = "tokens,activated_experts,time_us\n1,2,10\n64,2,20\n64,8,50\n"
    plain, mixed = read(bundle(tmp_path / "a")), read(bundle(tmp_path / "b", moe=moe))
    extra = mixed.verify_ms([1, 64]) - plain.verify_ms([1, 64])
    assert extra.tolist() == pytest.approx([LAYERS * 0.010, LAYERS * 0.050])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dense": "layer,tokens\nx,1"}, "dense.csv line 1: the column 'time_us' is missing"),
        ({"dense": "layer,tokens,time_us\nqkv,1,fast"}, "dense.csv line 2: time_us must be a num"),
        (
            {"dense": "layer,tokens,time_us\nqkv,1,2\nqkv,1,3"},
            "line 3: qkv at tokens 1 is given tw",
        ),
        ({"dense": "layer,tokens,time_us\nembedding,1,2"}, "no layer's times are there"),
        (
            {"per_sequence": "layer,sequences,time_us\nsampler,1,2"},
            "the layer 'lm_head' is missing",
        ),
        (
            {"attention": "prefill_chunk,n_decode,kv_decode,time_us\n16,0,0,2"},
            "attention.csv: no rows of decoding alone",
        ),
        ({"linear_attention": "x"}, "models with linear attention cannot be summed"),
    ],
)
def test_a_faulty_bundle_names_file_and_line(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read(bundle(tmp_path / "tp1", **changes))


def test_the_number_of_layers_has_to_be_given(tmp_path):
    with pytest.raises(UserError, match="say how many the model has"):
        read(bundle(tmp_path / "tp1"), num_layers=None)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is a folder without LLMServingSim's dense\.csv"):
        read(tmp_path)


def test_a_real_bundle_is_near_the_sum_that_was_made_of_it_by_hand():
    folder, by_hand = (
        SHARED / "llmservingsim_rtx4090",
        SHARED / "rtx4090_llama3.1-8b_bf16_llmservingsim.csv",
    )
    if not by_hand.exists():
        pytest.skip("the public profiles in ../shared are absent")
    loaded = read(folder, num_layers=32)
    rows = pd.read_csv(by_hand, comment="#")
    rows = rows[(rows["attention_in_measured_range"] == 1) & (rows["tokens"] <= 256)]
    step = loaded.step_ms(rows["requests"], rows["tokens"], rows["requests"] * rows["context"])
    error = np.abs(step / rows["ms"] - 1.0)
    assert error.median() < 0.02
    assert error.max() < 0.06
